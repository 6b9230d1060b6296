"""What is not differentiated as it is computed: `detach`, `no_grad`, hooks, functions with a backward of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.record import Call, Field, Record, Weight
from sigprop.capture.rules.replayed import replayed
from sigprop.errors import UnsupportedError
from sigprop.graph.graph import Parent
from sigprop.theory.ops.scale import GradientScale

PROBE = 1 << 20
"""Entries of a tensor up to which a hook is shown a whole gradient."""


@rule("detach")
def detach(capture: Capture, call: Call, input: Any) -> Any:
    return rescaled(capture, call, input, 0.0) if isinstance(input, Field) else call.function(input)


def stopped(capture: Capture, record: Record) -> Record:
    """A tensor made where gradients were off, as it is seen where they are on."""
    call = Call(torch.Tensor.detach, "detach", (record,), {}, capture.module)
    if isinstance(record, Weight):
        made: Record = Weight(record.shape, record.distribution, "", (Parent(record, 0.0, 0.0),), call)
    else:
        assert isinstance(record, Field)
        made = rescaled(capture, call, record, 0.0)
    made.requires_grad = False
    return made


def rescaled(capture: Capture, call: Call, item: Field, slope: float) -> Field:
    """The same numbers, with `slope` times the gradient."""
    inner = item.function

    def step(x: Tensor) -> Tensor:
        return scaled_gradient(x, slope)

    def function(x: Tensor) -> Tensor:
        return step(x if inner is None else inner(x))

    return item.entrywise(lambda _: capture.apply(GradientScale(slope=slope), item.node), function, call, step=step)


def scaled_gradient(x: Tensor, slope: float) -> Tensor:
    return x.detach() if slope == 0.0 else slope * x + (1.0 - slope) * x.detach()


def hooked(capture: Capture, item: Field, hook: Callable[[Tensor], Any]) -> Field | None:
    """A field with a hook on its gradient; None for a hook that only looks.

    The hook is shown a drawn gradient. One that multiplies it by a number is followed, any other is refused.
    """
    generator = torch.Generator().manual_seed(capture.graph.loss_seed)
    shape = item.shape if item.layout.positions * item.layout.channels <= PROBE else item.shape[-1:]
    probe = torch.randn(shape, generator=generator)
    returned = hook(probe.clone())
    if returned is None:
        return None
    slope = float((returned * probe).sum() / probe.square().sum())
    if not torch.allclose(returned, slope * probe, rtol=1e-4, atol=1e-6):
        raise UnsupportedError(
            f"a hook on a tensor {item.shape} in {capture.module!r} does more to its gradient than multiply it: "
            "measure the model instead"
        )
    call = Call(scaled_gradient, "scaled_gradient", (item, slope), {}, capture.module)
    return rescaled(capture, call, item, slope)


def custom(capture: Capture, call: Call) -> Any:
    """An `autograd.Function`: its forward and its own backward are run on drawn tensors."""
    return replayed(capture, call, f"{call.name}, a function with a backward of its own, sampled")
