"""A tensor whose gradient is multiplied by a number on the way back: 0 where it is detached."""

from __future__ import annotations

from dataclasses import dataclass

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries, ended
from sigprop.theory.ops.scale import Scale
from sigprop.theory.parts import AlongSignal
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class GradientScale(Scale):
    """`y = x`, with `g_x = slope * g_y`: `detach` and `no_grad` (slope 0), hooks that rescale a gradient.

    Forward   the state as it is
    Backward  `G_x = slope^2 G_y`; what of it is along the signal: times `slope`
    """

    carries = Carries(
        fluctuation=KEPT,
        common=KEPT,
        directions=KEPT,
        along_signal=TRANSFORMED,
        through_activation=ended("its slopes belong to the gradient as it was"),
    )

    factor: float = 1.0
    slope: float = 0.0

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return self.carries.signal(x, x.kernel, x.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None]:  # type: ignore[override]
        if self.slope == 0.0:
            return (None,)
        along = AlongSignal(gradient.along_signal.slope * self.slope, gradient.along_signal.rest * self.slope)
        return (self.carries.gradient(gradient, gradient.kernel.scale(self.slope**2), along_signal=along),)
