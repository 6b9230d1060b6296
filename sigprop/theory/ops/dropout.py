"""Dropout in training mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import ALL_TRANSFORMED, AlongSignal, Common, Gradient, Signal


@dataclass(frozen=True)
class Dropout(Op):
    """`y = x * mask / (1 - p)`, masks independent over tokens and channels.

    Forward   `K_y = K_x`, same-token values over `1 - p`
    Backward  `G_x = G_y`, same-token values, and the slope of a token on itself, over `1 - p`

    Of what is uniform over channels `1 - p` stays; the norm fluctuates by `3 p / (1 - p)` more.
    Exact in expectation (dslm B.3).
    """

    carries = ALL_TRANSFORMED

    probability: Tensor | float

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        p, common = self.probability, x.common
        return self.carries.signal(
            x,
            x.kernel.scale_diagonal(1.0 / (1.0 - p)),
            x.mean,
            fluctuation=replace(x.fluctuation, norm=x.fluctuation.norm + 3.0 * p / (1.0 - p)),
            common=Common(p + (1.0 - p) * common.uniform, (1.0 - p) * common.share, (1.0 - p) * common.mixed),
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        p, slope = self.probability, gradient.along_signal.slope
        if isinstance(slope, Tensor):
            kept = 1.0 / (1.0 - p)
            slope = slope * kept if slope.ndim == 1 else slope.diagonal_scatter(slope.diagonal() * kept)
        uniform = p + (1.0 - p) * gradient.directions.uniform
        made = self.carries.gradient(
            gradient,
            gradient.kernel.scale_diagonal(1.0 / (1.0 - p)),
            directions=replace(gradient.directions, uniform=uniform),
            along_signal=AlongSignal(slope, gradient.along_signal.rest),
            through_activation=gradient.through_activation.collected(output),
        )
        return (made,)

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(1.0)
