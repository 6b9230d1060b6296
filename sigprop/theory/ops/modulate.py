"""Fixed numbers that multiply a tensor entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.corrections.along_signal import weighted
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import ALL_TRANSFORMED, KEPT, AlongSignal, Gradient, Signal


@dataclass(frozen=True, eq=False)
class Modulate(Op):
    """`y = c * x` with fixed numbers `c`, given by their kernel and mean over channels; also masks of 0 and 1.

    Forward   `K_y = K_x E[c c']`
    Backward  `G_x = G_y E[c c']`, the slope likewise; of what is uniform over channels the part `(E c)^2 / E c^2` stays

    Exact where `c` and `x` are unrelated channel by channel.
    """

    carries = ALL_TRANSFORMED.but(fluctuation=KEPT)

    kernel: Tensor
    mean: Tensor

    @property
    def _even(self) -> Tensor:
        """How uniform the numbers are over channels."""
        return self.mean.square().sum() / self.kernel.diagonal().sum().clamp_min(1e-300)

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        common = replace(x.common, uniform=1.0 + (x.common.uniform - 1.0) * self._even)
        return self.carries.signal(x, Dense(x.kernel.values * self.kernel), x.mean * self.mean, common=common)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        directions, slope = gradient.directions, gradient.along_signal.slope
        moved = weighted(slope, self.kernel) if isinstance(slope, Tensor) else 0.0
        return (
            self.carries.gradient(
                gradient,
                Dense(gradient.kernel.values * self.kernel),
                directions=replace(directions, uniform=1.0 + (directions.uniform - 1.0) * self._even),
                along_signal=AlongSignal(moved, gradient.along_signal.rest),
                through_activation=gradient.through_activation.collected(output),
            ),
        )

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(self.mean)
