"""The witness: fresh seeds, own hooks, plain autograd. It shares no line with what it judges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Table = dict[str, dict[str, list[float]]]
Summary = dict[str, dict[str, tuple[float, float]]]
"""By row and column: mean and standard error over initializations."""


def signals(value: Any) -> list[Tensor]:
    """Floating-point tensors with entries and axes, in order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() and value.dim() and value.numel() else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in signals(item)]


def called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def one_draw(
    model: nn.Module, batch: Any, loss: Callable[..., Tensor] | None, seed: int
) -> dict[str, dict[str, float]]:
    """Variance and gradient of each module's first output, and the mean square of each parameter's gradient."""
    found: dict[str, dict[str, float]] = {}
    handles = [
        module.register_forward_hook(_noter(name or "(output)", found)) for name, module in model.named_modules()
    ]
    output = called(model, batch)
    for handle in handles:
        handle.remove()
    if loss is None:
        target = signals(output)[0]
        target.backward(torch.randn(target.shape, generator=torch.Generator().manual_seed(77_000 + seed)))
    else:
        loss(output).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"parameter {name}"] = {"grad_second_moment": float(parameter.grad.double().square().mean())}
    return found


def _noter(name: str, found: dict[str, dict[str, float]]) -> Callable:
    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        tensors = signals(output)
        if name in found or not tensors:
            return
        row = found[name] = {"variance": float(tensors[0].detach().double().var(correction=0))}
        if tensors[0].requires_grad:

            def keep(gradient: Tensor) -> None:
                row["grad_variance"] = float(gradient.double().square().mean())

            tensors[0].register_hook(keep)

    return note


def witnessed(make: Callable[[], nn.Module], batch: Any, loss: Any, count: int, first: int = 50_000) -> Summary:
    """Means and standard errors over `count` fresh initializations."""
    draws: Table = {}
    for seed in range(first, first + count):
        torch.manual_seed(seed)
        for name, row in one_draw(make(), batch, loss, seed).items():
            for column, value in row.items():
                draws.setdefault(name, {}).setdefault(column, []).append(value)
    return {name: {key: mean_and_error(values) for key, values in row.items()} for name, row in draws.items()}


def mean_and_error(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))
    return mean, spread / math.sqrt(len(values))
