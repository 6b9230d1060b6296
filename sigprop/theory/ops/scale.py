"""A number that multiplies a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Carried
from sigprop.theory.ops.modulate import Factors
from sigprop.theory.states import ALL_TRANSFORMED, KEPT, AlongSignal, Gradient, Signal, ended


@dataclass(frozen=True, eq=False)
class Scale(Factors):
    """`y = factor * x`.

    Forward   `K_y = factor^2 K_x`, mean `factor m`
    Backward  `G_x = factor^2 G_y`, the slope likewise

    Exact.
    """

    keeps_kurtosis = True

    factor: float

    @property
    def mean(self) -> float:
        return self.factor

    def square(self, kernel: Kernel) -> float:
        return self.factor**2

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        return below[0]

    def of_entry(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values * self.factor, torch.full_like(values, self.factor)


@dataclass(frozen=True, eq=False)
class GradientScale(Scale):
    """`y = x`, with `g_x = slope * g_y`: `detach` and `no_grad` (slope 0), hooks that rescale a gradient.

    Forward   the state as it is
    Backward  `G_x = slope^2 G_y`; what of it is along the signal: times `slope`

    Exact.
    """

    carries = ALL_TRANSFORMED.but(
        fluctuation=KEPT,
        common=KEPT,
        directions=KEPT,
        through_activation=ended("its slopes belong to the gradient as it was"),
    )

    factor: float = 1.0
    slope: float = 0.0

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return self.carries.signal(x, x.kernel, x.mean)

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(1.0, passed=self.slope)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None]:
        if self.slope == 0.0:
            return (None,)
        along = AlongSignal(gradient.along_signal.slope * self.slope, gradient.along_signal.rest * self.slope)
        return (self.carries.gradient(gradient, gradient.kernel.scale(self.slope**2), along_signal=along),)
