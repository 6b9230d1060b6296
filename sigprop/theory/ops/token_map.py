"""A fixed linear map over positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries
from sigprop.theory.gradient_along_signal import applied
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.parts import AlongSignal
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class TokenMap(Op):
    """`y = M x` over positions, `M` a fixed matrix: pooling and interpolation.

    Forward   `K_y = M K_x M^T`
    Backward  `G_x = M^T G_y M`, the slope `M^T B M` likewise; of `rest` only `a_y = M a_x` is known, so that it ends

    Fluctuations of the average token stand for those of a sum of tokens.
    """

    carries = Carries(
        fluctuation=KEPT,
        common=KEPT,
        directions=KEPT,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    matrix: Tensor

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return self.carries.signal(x, Dense(self.matrix @ x.kernel.values @ self.matrix.T), self.matrix @ x.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        slope = gradient.along_signal.slope
        along = AlongSignal(self.matrix.T @ applied(slope, self.matrix) if isinstance(slope, Tensor) else 0.0)
        kernel = Dense(self.matrix.T @ gradient.kernel.values @ self.matrix)
        through = gradient.through_activation.collected(output)
        return (self.carries.gradient(gradient, kernel, along_signal=along, through_activation=through),)
