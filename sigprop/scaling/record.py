"""Recording one training run: sizes of activations, of their changes, of gradients, weights and updates.

Sites are the modules that own parameters, the attention scores (caught where softmax or fused attention is
called, named after the module that calls it), and the model's output. Only root mean squares leave the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sigprop.scaling.dimensions import pattern

OUTPUT = "output"
SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


@dataclass(frozen=True)
class Run:
    """`sizes[quantity, site or parameter, step]` of one training, and the last dimension of every site."""

    sizes: dict[tuple[str, str, int], float]
    channels: dict[str, int]

    def by_pattern(self) -> Run:
        """Layers of one pattern as one, by the root mean square."""
        groups: dict[tuple[str, str, int], list[float]] = {}
        for (quantity, name, step), size in self.sizes.items():
            groups.setdefault((quantity, pattern(name), step), []).append(size * size)
        sizes = {key: math.sqrt(sum(values) / len(values)) for key, values in groups.items()}
        return Run(sizes, {pattern(name): count for name, count in self.channels.items()})


class Recorder:
    """Collects `sizes[quantity, site, step]` while a model trains on one fixed batch."""

    def __init__(self, model: nn.Module, step_fn: Callable[[nn.Module], tuple[Tensor, Tensor]]):
        self.model, self.step_fn = model, step_fn
        self.sizes: dict[tuple[str, str, int], Tensor] = {}
        self.channels: dict[str, int] = {}
        self._first: dict[str, Tensor] = {}
        self._weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        self._inside: list[str] = []
        self._seen: dict[str, int] = {}
        self._step = 0

    def run(self, optimizers: list[torch.optim.Optimizer], steps: int) -> dict[tuple[str, str, int], float]:
        """Train `steps` steps; the state before each step and after the last is recorded."""
        handles = self._attach()
        try:
            for step in range(steps + 1):
                self._step = step
                self._seen.clear()
                with _Scores(self):
                    output, loss = self.step_fn(self.model)
                self._activation(OUTPUT, output)
                self._parameters()
                if step < steps:
                    loss.backward()
                    self._gradients()
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
        finally:
            for handle in handles:
                handle.remove()
        return dict(zip(self.sizes, torch.stack(list(self.sizes.values())).tolist(), strict=True))

    def _attach(self) -> list[Any]:
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._inside.append(name)))
            owns = any(True for _ in module.parameters(recurse=False))
            handles.append(module.register_forward_hook(self._leave(name, owns)))
        return handles

    def _leave(self, name: str, owns: bool) -> Callable:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._inside.pop()
            if owns and isinstance(output, Tensor) and output.is_floating_point():
                self._activation(name, output)

        return hook

    def scores(self, values: Tensor) -> None:
        self._activation(f"{self._inside[-1] if self._inside else ''}.scores".lstrip("."), values, gradient=False)

    def _activation(self, name: str, values: Tensor, gradient: bool = True) -> None:
        self._seen[name] = self._seen.get(name, 0) + 1
        if self._seen[name] > 1:
            name = f"{name}#{self._seen[name]}"
        if gradient and values.requires_grad:
            step = self._step
            values.register_hook(lambda grad: self._put("gradient", name, step, grad))
        values = values.detach()
        self.channels[name] = values.shape[-1] if values.dim() else 1
        self._put("activation", name, self._step, values)
        if self._step == 0:
            self._first[name] = values.clone() if name == OUTPUT else values
        elif name in self._first and self._first[name].shape == values.shape:
            self._put("change", name, self._step, values - self._first[name])

    def _parameters(self) -> None:
        for name, parameter in self.model.named_parameters():
            if name not in self._weights:
                continue
            if self._step == 0:
                self._put("weight", name, 0, parameter.detach())
            elif self._step == 1:
                self._put("update", name, 1, parameter.detach() - self._weights[name])

    def _gradients(self) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self._put("gradient", name, self._step, parameter.grad)

    def _put(self, quantity: str, name: str, step: int, values: Tensor) -> None:
        norm = torch.linalg.vector_norm(values.detach(), dtype=torch.float32)
        self.sizes[quantity, name, step] = norm / math.sqrt(max(values.numel(), 1))


class _Scores(TorchFunctionMode):
    """Catches attention scores on their way into softmax, for the first sequence of the batch."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key = args[0][:1].detach(), args[1][:1].detach()
            scale = kwargs.get("scale") or query.shape[-1] ** -0.5
            if key.shape[1] != query.shape[1] and query.dim() == 4:
                key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            self.recorder.scores(query @ key.transpose(-1, -2) * scale)
        elif func in SOFTMAX and args[0].dim() == 4:
            scores = args[0][:1].detach()
            self.recorder.scores(scores.masked_fill(scores < -1e4, 0.0))
        return func(*args, **kwargs)
