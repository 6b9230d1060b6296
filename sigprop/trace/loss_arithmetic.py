"""Losses are numbers: they add and scale."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sigprop.theory import Gradient
from sigprop.theory.parts import AlongSignal
from sigprop.trace.broadcast import as_constant
from sigprop.trace.record import Loss

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture


def loss_sum(first: Any, second: Any) -> Loss:
    seeds = [seed for item in (first, second) if isinstance(item, Loss) for seed in item.seeds]
    return Loss(seeds)


def loss_scaled(trace: Capture, loss: Loss, factor: Any) -> Loss:
    number = as_constant(trace.value_of(factor))
    number = 1.0 if number is None or not math.isfinite(number) else number
    return Loss([(field, _times(gradient, number)) for field, gradient in loss.seeds])


def _times(gradient: Gradient, number: float) -> Gradient:
    along = AlongSignal(gradient.along_signal.slope * number, gradient.along_signal.rest * number)
    return replace(gradient, kernel=gradient.kernel.scale(number**2), along_signal=along)
