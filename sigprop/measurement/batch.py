"""Calling a model on any batch, and starting its gradient."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import as_batch, run, tensors_in
from sigprop.errors import InputError, SigpropError
from sigprop.losses import LossChoice, Objective, described, objective


def call(model: nn.Module, batch: Any) -> Any:
    """`model(tensor)`, `model(*tuple)` or `model(**dict)`; a refusal is reported with the model's own error."""
    try:
        return run(model, as_batch(batch, model))
    except (SigpropError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise refusal(model, batch, error) from error


def send_back(model: nn.Module, tensor: Tensor, gradient: Tensor | None) -> None:
    """The backward pass; what it fails with is reported as the model's own error."""
    try:
        torch.autograd.backward(tensor, gradient)
    except (SigpropError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        where = _innermost(model, error)
        raise InputError(
            f"the backward pass of {type(model).__name__} failed{f' in {where!r}' if where else ''} with "
            f"{type(error).__name__}: {error}"
        ) from error


def refusal(model: nn.Module, batch: Any, error: Exception) -> InputError:
    """A model's own error on a batch: where it was raised, on what, and what its forward takes."""
    where = _innermost(model, error)
    place = f" in {where!r}" if where else ""
    return InputError(
        f"{type(model).__name__} failed on the batch{place} with {type(error).__name__}: {error}\n"
        f"  the batch was {described(batch)}\n"
        f"  the model expects forward{inspect.signature(model.forward)}" + _what_to_do(model, where, error)
    )


def _what_to_do(model: nn.Module, where: str, error: Exception) -> str:
    """One more line for mistakes whose way out is known."""
    if any(parameter.is_meta for parameter in model.parameters()):
        return "\n  its parameters are on the meta device: needs a model with weights (predict does without)"
    read = _read_by_table(error)
    if read is not None:
        rows, largest = read
        return f"\n  {where!r} has {rows} rows, and what it looks up reaches {largest}: needs at most {rows - 1}"
    if isinstance(error, TypeError) and "argument" in str(error) and not where:
        return "\n  give a mapping with the names of these arguments; targets may be called `labels`"
    return ""


def _innermost(model: nn.Module, error: Exception) -> str:
    """The qualified name of the innermost submodule on the error's traceback."""
    names = {id(module): name for name, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        found = names.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found


def _read_by_table(error: Exception) -> tuple[int, int] | None:
    """The rows of the table whose lookup failed, and the largest row that was asked for."""
    trace = error.__traceback__ if isinstance(error, IndexError) else None
    while trace is not None:
        table, asked = trace.tb_frame.f_locals.get("self"), trace.tb_frame.f_locals.get("input")
        if isinstance(table, nn.Embedding) and isinstance(asked, Tensor) and asked.numel():
            return table.num_embeddings, int(asked.max())
        trace = trace.tb_next
    return None


def signals_in(value: Any) -> list[tuple[str, Tensor]]:
    """The floating-point tensors of an output that have entries and at least one axis."""
    return [(path, x) for path, x in tensors_in(value) if x.is_floating_point() and x.dim() > 0 and x.numel() > 0]


def what_to_differentiate(batch: Any, output: Any, loss: LossChoice) -> Objective:
    """The loss or the output that `backward` starts from; see `sigprop.losses`."""
    chosen = objective(output, batch, loss)
    if not chosen.tensor.requires_grad:
        raise InputError(
            f"{'the output' if chosen.is_noise else chosen.name} carries no gradient: it was detached, or no parameter "
            "requires one; pass backward=False to measure the forward pass only"
        )
    return chosen
