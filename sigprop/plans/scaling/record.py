"""Recording a training: sizes of activations, of their changes, of gradients, weights and updates.

Sites are the modules that own parameters, at the start also those that hold such modules, the attention scores (caught
where softmax or fused attention is called, named after the module that calls it), and the model's output.
Only root mean squares leave the device.
One model is watched, or several seeds of it at once inside `vmap`: then every size is one number per seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sigprop.compat import DisableTorchFunction, foreach_norm, foreach_sub, version_of
from sigprop.plans.scaling.batching import RULES, bare
from sigprop.plans.scaling.dimensions import pattern

OUTPUT = "output"
ATTENTION, SOFTMAX = F.scaled_dot_product_attention, {F.softmax, torch.softmax, Tensor.softmax}
MOST_BYTES = 1 << 28
Key = tuple[str, str, int]


@dataclass(frozen=True)
class RecordedRun:
    """`sizes[quantity, site or parameter, step]` of one training, and the last dimension of every site."""

    sizes: dict[Key, float]
    channels: dict[str, int]

    def as_rates(self) -> RecordedRun:
        """Updates divided by the gradients that they follow."""
        found = {}
        for (quantity, name, step), size in self.sizes.items():
            gradient = self.sizes.get(("gradient", name, 0), 0.0)
            if quantity != "update":
                found[quantity, name, step] = size
            elif gradient > 0:
                found["rate", name, step] = size / gradient
        return RecordedRun(found, self.channels)

    def by_pattern(self) -> RecordedRun:
        """Layers of one pattern as one, by the root mean square."""
        groups: dict[Key, list[float]] = {}
        for (quantity, name, step), size in self.sizes.items():
            groups.setdefault((quantity, pattern(name), step), []).append(size * size)
        sizes = {key: math.sqrt(sum(values) / len(values)) for key, values in groups.items()}
        return RecordedRun(sizes, {pattern(name): count for name, count in self.channels.items()})


class SizeRecorder:
    """Collects sizes while a model trains on one fixed batch; `seeds` is None for a single model.

    `parameters` are those trained, by name; with `seeds` they carry a leading dimension of that length. Tensors wait
    by reference and are reduced together. One that is written to meanwhile is left out, and copied from then on.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor], seeds: int | None = None):
        self.model, self.seeds, self.step = model, seeds, 0
        self._parameters = dict(parameters)
        self._start = {name: values.detach().clone() for name, values in parameters.items()}
        self._first: dict[str, Tensor] = {}
        self._channels: dict[str, int] = {}
        self._inside: list[str] = []
        self._seen: dict[str, int] = {}
        self._overwritten: set[str] = set()
        self._waiting: list[tuple[Key, Tensor, int]] = []
        self._bytes = 0
        self._keys: list[tuple[Key, int]] = []
        self._norms: list[Tensor] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on every module for as long as this lasts."""
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._inside.append(name)))
            owns = any(True for _ in module.parameters(recurse=False))
            holds = name != "" and not owns and any(True for _ in module.parameters())
            handles.append(module.register_forward_hook(self._leave(name, owns, holds)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def forward(self, step: int, work: Callable[[], Tensor]) -> Tensor:
        """The loss that `work` returns, with every site on the way to it recorded as of `step`."""
        self.step = step
        self._seen.clear()
        loss = work()
        self._reduce()
        return loss

    def follow(self, step_fn: Callable[[Any], tuple[Tensor, Tensor]], model: Callable) -> Tensor:
        """The loss of `step_fn(model)`, with attention scores and output recorded; runs inside `vmap`."""
        with _Watched(self):
            output, loss = step_fn(model)
        self.activation(OUTPUT, output)
        return loss

    def backward(self, loss: Tensor) -> None:
        loss.backward()
        self._reduce()
        found = {name: values.grad for name, values in self._parameters.items() if values.grad is not None}
        self._put("gradient", found)

    def weights(self) -> None:
        """Sizes of the parameters before the first step, of their updates after it."""
        if self.step == 0:
            self._put("weight", self._parameters)
        elif self.step == 1:
            now, start = (list(values.values()) for values in (self._parameters, self._start))
            moved = foreach_sub(now, start)
            self._put("update", dict(zip(self._start, moved, strict=True)))
            self._start.clear()

    def activation(self, name: str, values: Tensor, gradient: bool = True) -> None:
        """Size of a site now, of its change since the start, and, on the way back, of its gradient."""
        if not values.is_floating_point():
            return
        self._seen[name] = self._seen.get(name, 0) + 1
        if self._seen[name] > 1:
            name = f"{name}#{self._seen[name]}"
        self._channels[name] = values.shape[-1] if values.dim() else 1
        values, place = bare(values) if self.seeds else (values, -1)
        if gradient and values.requires_grad:
            key = "gradient", name, self.step
            values.register_hook(lambda grad: self._wait(key, self._lead(grad, place)))
        now = self._lead(values.detach(), place)
        if name in self._overwritten:
            now = now.clone()
        self._wait(("activation", name, self.step), now)
        if self.step == 0:
            self._first[name] = now.clone()
        elif name in self._first and self._first[name].shape == now.shape:
            self._wait(("change", name, self.step), now - self._first[name])

    def whole(self, name: str, values: Any) -> None:
        """Size of what a module that holds others puts out at the start: a multiplier may stand in its own forward."""
        if not isinstance(values, Tensor) or not values.is_floating_point() or name in self._channels:
            return
        self._channels[name] = values.shape[-1] if values.dim() else 1
        values, place = bare(values) if self.seeds else (values, -1)
        self._wait(("activation", name, 0), self._lead(values.detach(), place).clone())

    def scores(self, values: Tensor) -> None:
        self.activation(f"{self._inside[-1] if self._inside else ''}.scores".lstrip("."), values, gradient=False)

    def runs(self) -> list[RecordedRun]:
        """One `RecordedRun` per seed; the only place where the device is waited for."""
        table = torch.stack(self._norms).reshape(len(self._keys), -1).tolist()
        roots = [math.sqrt(max(count, 1)) for _, count in self._keys]
        return [
            RecordedRun(
                {key: norm / root for (key, _), norm, root in zip(self._keys, column, roots, strict=True)},
                self._channels,
            )
            for column in zip(*table, strict=True)
        ]

    def _leave(self, name: str, owns: bool, holds: bool) -> Callable:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._inside.pop()
            if owns and isinstance(output, Tensor):
                with DisableTorchFunction():
                    self.activation(name, output)
            elif holds and self.step == 0:
                with DisableTorchFunction():
                    self.whole(name, output[0] if isinstance(output, tuple) and output else output)

        return hook

    def _lead(self, values: Tensor, place: int) -> Tensor:
        """The seeds as first dimension."""
        if self.seeds is None or place == 0:
            return values
        return values.expand(self.seeds, *values.shape) if place < 0 else values.movedim(place, 0)

    def _wait(self, key: Key, values: Tensor) -> None:
        self._waiting.append((key, values, version_of(values)))
        self._bytes += values.nbytes
        if self._bytes > MOST_BYTES:
            self._reduce()

    def _reduce(self) -> None:
        """Sizes of all that waits. What was overwritten at the start is taken from its copy."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        found = []
        for key, values, version in waiting:
            quantity, name, step = key
            if version_of(values) == version:
                found.append((key, values))
                continue
            self._overwritten.add(name)
            if (quantity, step) == ("activation", 0):
                found.append((key, self._first[name]))
        self._add(found)

    def _put(self, quantity: str, named: Mapping[str, Tensor]) -> None:
        self._add([((quantity, name, self.step), values.detach()) for name, values in named.items()])

    def _add(self, found: list[tuple[Key, Tensor]]) -> None:
        """Norms by seed, one launch for many."""
        if not found:
            return
        parts = [part for _, values in found for part in (values.unbind() if self.seeds else (values,))]
        dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
        self._norms += foreach_norm(parts, 2, dtype)
        self._keys += [(key, values.numel() // (self.seeds or 1)) for key, values in found]


class _Watched(TorchFunctionMode):
    """Catches attention scores on their way into softmax, for the first sequence of the batch, and lends `vmap` the
    rules of `batching`."""

    def __init__(self, recorder: SizeRecorder):
        self.recorder = recorder
        self.rules = RULES if recorder.seeds else {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is ATTENTION:
            given = dict(zip(("query", "key"), args, strict=False)) | kwargs
            query, key = given["query"][:1].detach(), given["key"][:1].detach()
            scale = given.get("scale") or query.shape[-1] ** -0.5
            if key.shape[1] != query.shape[1] and query.dim() == 4:
                key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            self.recorder.scores(query @ key.transpose(-1, -2) * scale)
        elif func in SOFTMAX and args and args[0].dim() == 4:
            scores = args[0][:1].detach()
            self.recorder.scores(scores.masked_fill(scores < -1e4, 0.0))
        return self.rules.get(func, func)(*args, **kwargs)  # pyright: ignore[reportOptionalCall]
