"""Recording a training: sizes of activations, of their changes, of gradients, weights and updates.

Sites are the modules that own parameters, at the start also those that hold such modules, the attention scores (caught
where softmax or fused attention is called, named after the module that calls it), and the model's output.
Only root mean squares leave the device.
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

from sigprop.compat import DisableTorchFunction
from sigprop.measurement.functions import sdpa_scores
from sigprop.plans.scaling.dimensions import pattern

OUTPUT = "output"
ATTENTION, SOFTMAX = F.scaled_dot_product_attention, {F.softmax, torch.softmax, Tensor.softmax}
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
    """Collects sizes while a model trains on one fixed batch; `parameters` are those trained, by name."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor]):
        self.model, self.step = model, 0
        self._parameters = dict(parameters)
        self._start = {name: values.detach().clone() for name, values in parameters.items()}
        self._first: dict[str, Tensor] = {}
        self._channels: dict[str, int] = {}
        self._inside: list[str] = []
        self._seen: dict[str, int] = {}
        self._norms: dict[Key, tuple[Tensor, int]] = {}

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

    def forward(self, step: int, step_fn: Callable[[Any], tuple[Tensor, Tensor]]) -> Tensor:
        """The loss, with sites, attention scores and output recorded as of `step`; at the start also the sizes of the
        parameters, after the first step those of their updates."""
        self.step = step
        self._seen.clear()
        with _Watched(self):
            output, loss = step_fn(self.model)
        self._activation(OUTPUT, output)
        for name, values in self._parameters.items() if step < 2 else ():
            now = values.detach()
            self._take("update" if step else "weight", name, now - self._start.pop(name) if step else now)
        return loss

    def backward(self, loss: Tensor) -> None:
        loss.backward()
        for name, values in self._parameters.items():
            if values.grad is not None:
                self._take("gradient", name, values.grad)

    def scores(self, values: Tensor) -> None:
        self._activation(f"{self._inside[-1] if self._inside else ''}.scores".lstrip("."), values, gradient=False)

    def run(self) -> RecordedRun:
        """What was recorded; the only place where the device is waited for."""
        sizes = torch.stack([norm for norm, _ in self._norms.values()]).tolist()
        counts = [max(count, 1) for _, count in self._norms.values()]
        found = {key: size / math.sqrt(count) for key, size, count in zip(self._norms, sizes, counts, strict=True)}
        return RecordedRun(found, self._channels)

    def _leave(self, name: str, owns: bool, holds: bool) -> Callable:
        """What holds modules is recorded at the start alone: a multiplier may stand in its own forward."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._inside.pop()
            with DisableTorchFunction():
                if owns and isinstance(output, Tensor):
                    self._activation(name, output)
                elif holds and self.step == 0:
                    first = output[0] if isinstance(output, tuple) and output else output
                    if isinstance(first, Tensor) and first.is_floating_point() and name not in self._channels:
                        self._channels[name] = first.shape[-1] if first.dim() else 1
                        self._take("activation", name, first.detach())

        return hook

    def _activation(self, name: str, values: Tensor, gradient: bool = True) -> None:
        """Size of a site now, of its change since the start, and, on the way back, of its gradient."""
        if not values.is_floating_point():
            return
        self._seen[name] = self._seen.get(name, 0) + 1
        if self._seen[name] > 1:
            name = f"{name}#{self._seen[name]}"
        self._channels[name] = values.shape[-1] if values.dim() else 1
        if gradient and values.requires_grad:
            values.register_hook(lambda grad: self._take("gradient", name, grad))
        now = values.detach()
        self._take("activation", name, now)
        if self.step == 0:
            self._first[name] = now.clone()
        elif name in self._first and self._first[name].shape == now.shape:
            self._take("change", name, now - self._first[name])

    def _take(self, quantity: str, name: str, values: Tensor) -> None:
        dtype = torch.promote_types(values.dtype, torch.float32)
        norm = torch.linalg.vector_norm(values.detach(), dtype=dtype)
        self._norms[quantity, name, self.step] = norm, values.numel()


class _Watched(TorchFunctionMode):
    """Catches attention scores on their way into softmax, for the first sequence of the batch."""

    def __init__(self, recorder: SizeRecorder):
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is ATTENTION:
            given = dict(zip(("query", "key"), args, strict=False)) | kwargs
            query, key = given["query"][:1].detach(), given["key"][:1].detach()
            grouped = query.dim() == 4 and key.shape[1] != query.shape[1]
            self.recorder.scores(sdpa_scores(query, key, key, scale=given.get("scale"), enable_gqa=grouped))
        elif func in SOFTMAX and args and args[0].dim() == 4:
            scores = args[0][:1].detach()
            self.recorder.scores(scores.masked_fill(scores < -1e4, 0.0))
        return func(*args, **kwargs)
