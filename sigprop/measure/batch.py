"""Calling a model on any batch, and choosing what to differentiate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.errors import InputError, SigpropError

Loss = Callable[..., Tensor]
NOISE_STREAM = 0x5EED << 32
"""Far from the seeds that people give their weights, so that noise and weights are independent."""


def copied(batch: Any) -> Any:
    """The batch with copies of its tensors, so that a model may write into its inputs."""
    if isinstance(batch, Tensor):
        return batch.detach().clone().requires_grad_(batch.requires_grad)
    if isinstance(batch, Mapping):
        return {key: copied(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return tuple(copied(item) for item in batch)
    return batch


def call(model: nn.Module, batch: Any) -> Any:
    """`model(tensor)`, `model(*tuple)` or `model(**dict)`; a refusal is reported with the model's own error."""
    try:
        if isinstance(batch, Mapping):
            return model(**batch)
        return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    except (SigpropError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(_refusal(model, batch, error)) from error


def _refusal(model: nn.Module, batch: Any, error: Exception) -> str:
    where = _innermost(model, error)
    place = f" in {where!r}" if where else ""
    return (
        f"{type(model).__name__} failed on the batch{place} with {type(error).__name__}: {error}\n"
        f"  the batch was {_described(batch)}\n"
        f"  the model expects forward{inspect.signature(model.forward)}"
    )


def _innermost(model: nn.Module, error: Exception) -> str:
    """The qualified name of the innermost submodule on the error's traceback."""
    names = {id(module): name for name, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        found = names.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)} of {str(batch.dtype).removeprefix('torch.')} on {batch.device}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {_described(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, (tuple, list)):
        return "(" + ", ".join(_described(item) for item in batch) + ")"
    return type(batch).__name__


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a module's output, with its place in it: `[0]`, `[key]`."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}[{key}]")


def signals_in(value: Any) -> list[tuple[str, Tensor]]:
    """The floating-point tensors of an output that have entries and at least one axis."""
    found = [("", value)] if isinstance(value, Tensor) else tensors_in(value)
    return [(path, x) for path, x in found if x.is_floating_point() and x.dim() > 0 and x.numel() > 0]


def start_gradient(
    model: nn.Module, batch: Any, output: Any, loss_fn: Loss | None, noise_seed: int = 0
) -> tuple[Tensor, Tensor | None]:
    """What to call backward on, and with which gradient: the loss, or the output against white noise."""
    if loss_fn is not None:
        arguments = (output, batch) if _takes_two(loss_fn) else (output,)
        return _checked_loss(loss_fn(*arguments), "loss_fn"), None
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return _checked_loss(loss, "the model's .loss"), None
    signals = signals_in(output)
    if not signals:
        raise InputError(
            f"{type(model).__name__} returned {_described(output)}: needs a floating-point tensor, or a loss_fn"
        )
    target = signals[0][1]
    _require_gradient(target, "the output")
    generator = torch.Generator(target.device).manual_seed(NOISE_STREAM + noise_seed)
    noise = torch.randn(target.shape, generator=generator, device=target.device, dtype=torch.float32)
    return target, noise.to(target.dtype)


def _takes_two(loss_fn: Loss) -> bool:
    """Whether a loss asks for the batch as well: it needs two positional arguments."""
    try:
        parameters = inspect.signature(loss_fn).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional) == 2


def _checked_loss(loss: Any, origin: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise InputError(f"{origin} gave {_described(loss)}: needs a tensor with one number")
    _require_gradient(loss, origin)
    return loss


def _require_gradient(tensor: Tensor, origin: str) -> None:
    if not tensor.requires_grad:
        raise InputError(
            f"{origin} carries no gradient: it was detached, or no parameter requires one; "
            "pass backward=False to measure the forward pass only"
        )
