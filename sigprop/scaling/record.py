"""Recording a training: sizes of activations, of their changes, of gradients, weights and updates.

Sites are the modules that own parameters, the attention scores (caught where softmax or fused attention is
called, named after the module that calls it), and the model's output. Only root mean squares leave the device.
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
from torch._C._functorch import get_unwrapped, maybe_get_bdim  # as torch's own printing uses them
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sigprop.scaling.dimensions import pattern

OUTPUT = "output"
CAUGHT = {F.scaled_dot_product_attention, F.softmax, torch.softmax, Tensor.softmax}
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Run:
    """`sizes[quantity, site or parameter, step]` of one training, and the last dimension of every site."""

    sizes: dict[Key, float]
    channels: dict[str, int]

    def as_rates(self) -> Run:
        """Updates divided by the gradients that they follow."""
        found = {}
        for (quantity, name, step), size in self.sizes.items():
            gradient = self.sizes.get(("gradient", name, 0), 0.0)
            if quantity != "update":
                found[quantity, name, step] = size
            elif gradient > 0:
                found["rate", name, step] = size / gradient
        return Run(found, self.channels)

    def by_pattern(self) -> Run:
        """Layers of one pattern as one, by the root mean square."""
        groups: dict[Key, list[float]] = {}
        for (quantity, name, step), size in self.sizes.items():
            groups.setdefault((quantity, pattern(name), step), []).append(size * size)
        sizes = {key: math.sqrt(sum(values) / len(values)) for key, values in groups.items()}
        return Run(sizes, {pattern(name): count for name, count in self.channels.items()})


class Recorder:
    """Collects sizes while a model trains on one fixed batch; `seeds` is None for a single model.

    `parameters` are those trained, by name; with `seeds` they carry a leading dimension of that length.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor], seeds: int | None = None):
        self.model, self.seeds, self.step = model, seeds, 0
        self._parameters = dict(parameters)
        self._start = {name: values.detach().clone() for name, values in parameters.items()}
        self._first: dict[str, Tensor] = {}
        self._channels: dict[str, int] = {}
        self._inside: list[str] = []
        self._seen: dict[str, int] = {}
        self._keys: list[tuple[Key, int]] = []
        self._norms: list[Tensor] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on every module for as long as this lasts."""
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._inside.append(name)))
            owns = any(True for _ in module.parameters(recurse=False))
            handles.append(module.register_forward_hook(self._leave(name, owns)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def forward(self, step: int, work: Callable[[], Tensor]) -> Tensor:
        """The loss that `work` returns, with every site on the way to it recorded as of `step`."""
        self.step = step
        self._seen.clear()
        with _Scores(self):
            return work()

    def activation(self, name: str, values: Tensor, gradient: bool = True) -> None:
        """Size of a site now, of its change since the start, and, on the way back, of its gradient."""
        if not values.is_floating_point():
            return
        self._seen[name] = self._seen.get(name, 0) + 1
        if self._seen[name] > 1:
            name = f"{name}#{self._seen[name]}"
        self._channels[name] = values.shape[-1] if values.dim() else 1
        values, place = self._bare(values)
        if gradient and values.requires_grad:
            step = self.step
            values.register_hook(lambda grad: self._put("gradient", name, step, self._lead(grad, place)))
        now = self._lead(values.detach(), place)
        self._put("activation", name, self.step, now)
        if self.step == 0:
            self._first[name] = now.clone()
        elif name in self._first and self._first[name].shape == now.shape:
            self._put("change", name, self.step, now - self._first[name])

    def weights(self) -> None:
        """Sizes of the parameters before the first step, of their updates after it."""
        if self.step == 0:
            self._put_all("weight", self._parameters)
        elif self.step == 1:
            now, start = (list(values.values()) for values in (self._parameters, self._start))
            moved = torch._foreach_sub(now, start)  # pyright: ignore[reportPrivateImportUsage]
            self._put_all("update", dict(zip(self._start, moved, strict=True)))
            self._start.clear()

    def gradients(self) -> None:
        found = {name: values.grad for name, values in self._parameters.items() if values.grad is not None}
        self._put_all("gradient", found)

    def runs(self) -> list[Run]:
        """One `Run` per seed; the only place where the device is waited for."""
        table = torch.cat([norms.reshape(-1) for norms in self._norms]).reshape(len(self._keys), -1).tolist()
        roots = [math.sqrt(max(count, 1)) for _, count in self._keys]
        columns = zip(*table, strict=True)
        return [
            Run(
                {key: norm / root for (key, _), norm, root in zip(self._keys, column, roots, strict=True)},
                self._channels,
            )
            for column in columns
        ]

    def scores(self, values: Tensor) -> None:
        self.activation(f"{self._inside[-1] if self._inside else ''}.scores".lstrip("."), values, gradient=False)

    def _leave(self, name: str, owns: bool) -> Callable:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._inside.pop()
            if owns and isinstance(output, Tensor):
                with torch._C.DisableTorchFunction():
                    self.activation(name, output)

        return hook

    def _bare(self, values: Tensor) -> tuple[Tensor, int]:
        """Inside `vmap`: the tensor of all seeds that autograd sees, and the place of their dimension (-1: none)."""
        if self.seeds is None:
            return values, -1
        return get_unwrapped(values), maybe_get_bdim(values)

    def _lead(self, values: Tensor, place: int) -> Tensor:
        """The seeds as first dimension."""
        return values.unsqueeze(0).expand(self.seeds or 1, *values.shape) if place < 0 else values.movedim(place, 0)

    def _put(self, quantity: str, name: str, step: int, values: Tensor) -> None:
        flat = values.unsqueeze(-1) if values.dim() == 1 else values
        dtype = torch.promote_types(values.dtype, torch.float32)
        self._norms.append(torch.linalg.vector_norm(flat, dim=tuple(range(1, flat.dim())), dtype=dtype))
        self._keys.append(((quantity, name, step), values[0].numel()))

    def _put_all(self, quantity: str, named: Mapping[str, Tensor]) -> None:
        """Parameters at once: one launch for many."""
        parts = [part for values in named.values() for part in (values.unbind() if self.seeds else (values,))]
        dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
        parts = [part.detach() for part in parts]
        self._norms += torch._foreach_norm(parts, 2, dtype)  # pyright: ignore[reportPrivateImportUsage]
        seeds = self.seeds or 1
        self._keys += [((quantity, name, self.step), values.numel() // seeds) for name, values in named.items()]


class _Scores(TorchFunctionMode):
    """Catches attention scores on their way into softmax, for the first sequence of the batch."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in CAUGHT:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            given = dict(zip(("query", "key"), args, strict=False)) | kwargs
            query, key = given["query"][:1].detach(), given["key"][:1].detach()
            scale = given.get("scale") or query.shape[-1] ** -0.5
            if key.shape[1] != query.shape[1] and query.dim() == 4:
                key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            self.recorder.scores(query @ key.transpose(-1, -2) * scale)
        elif args and args[0].dim() == 4:
            scores = args[0][:1].detach()
            self.recorder.scores(scores.masked_fill(scores < -1e4, 0.0))
        return func(*args, **kwargs)
