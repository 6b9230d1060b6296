"""A fixed linear map over positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries
from sigprop.theory.gradient_along_signal import applied
from sigprop.theory.kernels import Dense, Kernel
from sigprop.theory.ops.base import Op
from sigprop.theory.parts import AlongSignal, Directions
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class TokenMap(Op):
    """`y = M x` over positions, `M` a fixed matrix: pooling and interpolation.

    Forward   `K_y = M K_x M^T`
    Backward  `G_x = M^T G_y M`, the slope `M^T B M` likewise; of `rest` only `a_y = M a_x` is known, so that it ends

    The squared norms of tokens with cosine `r` have `r^2` of their fluctuation in common. Of a sum with the weights `w`
    (shares of its energy) that part remains: `norm` is `2 + (v - 2) sum w w' r^2`. A gradient across `y_t` is across
    `x_s` by their squared cosine.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=KEPT,
        directions=TRANSFORMED,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    matrix: Tensor

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, norm = Dense(self.matrix @ x.kernel.values @ self.matrix.T), x.fluctuation.norm
        fluctuation = replace(x.fluctuation, norm=2.0 + (norm - 2.0) * self._in_step(x.covariance))
        return self.carries.signal(x, kernel, self.matrix @ x.mean, fluctuation=fluctuation)

    def _in_step(self, kernel: Kernel) -> Tensor:
        weights = self.matrix.square() * kernel.diagonal
        shared = ((weights @ kernel.normalized().values.square()) * weights).sum(1)
        return (shared / weights.sum(1).square().clamp_min(1e-300)).mean()

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        slope = gradient.along_signal.slope
        along = AlongSignal(self.matrix.T @ applied(slope, self.matrix) if isinstance(slope, Tensor) else 0.0)
        kernel = Dense(self.matrix.T @ gradient.kernel.values @ self.matrix)
        through = gradient.through_activation.collected(output)
        parts = {"directions": self._directions(gradient, output, inputs[0]), "along_signal": along}
        return (self.carries.gradient(gradient, kernel, through_activation=through, **parts),)

    def _directions(self, gradient: Gradient, output: Signal, x: Signal) -> Directions:
        """Cosines of the pairs that the map joins, by the energy that passes between them."""
        level = (output.kernel.diagonal[:, None] * x.kernel.diagonal).clamp_min(1e-300)
        passed = self.matrix.square() * gradient.kernel.diagonal[:, None]
        cosines = (self.matrix @ x.kernel.values).square() / level
        part = (passed * cosines).sum() / passed.sum().clamp_min(1e-300)
        return replace(gradient.directions, radial=gradient.directions.along_part(part))
