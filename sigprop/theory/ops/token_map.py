"""A fixed linear map over positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries
from sigprop.theory.corrections.along_signal import applied
from sigprop.theory.kernels import Exchangeable, Kernel
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

    Exact; of tokens that are alike the average token and pair of the output are followed, exact for a mean over all.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=KEPT,
        directions=TRANSFORMED,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    matrix: Tensor

    @staticmethod
    def mean(tokens: int) -> TokenMap:
        """The mean over so many tokens: one token."""
        return TokenMap(torch.full((1, tokens), 1.0 / tokens, dtype=torch.float64))

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, norm = x.kernel.mapped(self.matrix), x.fluctuation.norm
        fluctuation = replace(x.fluctuation, norm=2.0 + (norm - 2.0) * self._in_step(x.covariance))
        return self.carries.signal(x, kernel, self._mean(x), fluctuation=fluctuation)

    def _mean(self, x: Signal) -> Tensor:
        if isinstance(x.kernel, Exchangeable):
            return x.mean * float(self.matrix.sum(1).mean())
        return x.mean @ self.matrix.to(x.mean).T

    def _in_step(self, kernel: Kernel) -> Tensor:
        weights, cosine = (
            self.matrix.square().to(kernel.values) * _written_out(kernel)[..., None, :],
            kernel.normalized(),
        )
        shared = (cosine.like(cosine.values.square()).met_by(weights) * weights).sum(-1)
        return (shared / weights.sum(-1).square().clamp_min(1e-300)).mean(-1)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        slope = gradient.along_signal.slope
        along = AlongSignal(self.matrix.T @ applied(slope, self.matrix) if isinstance(slope, Tensor) else 0.0)
        kernel = gradient.kernel.mapped(self.matrix.T)
        through = gradient.through_activation.collected(output)
        parts = {"directions": self._directions(gradient, output, inputs[0]), "along_signal": along}
        return (self.carries.gradient(gradient, kernel, through_activation=through, **parts),)

    def _directions(self, gradient: Gradient, output: Signal, x: Signal) -> Directions:
        """Cosines of the pairs that the map joins, by the energy that passes between them."""
        received, given, sent = (_written_out(item) for item in (output.kernel, x.kernel, gradient.kernel))
        cosines = x.kernel.met_by(self.matrix).square() / (received[..., None] * given[..., None, :]).clamp_min(1e-300)
        passed = self.matrix.square().to(sent) * sent[..., None]
        part = (passed * cosines).sum((-1, -2)) / passed.sum((-1, -2)).clamp_min(1e-300)
        return gradient.directions.at_part(part)


def _written_out(kernel: Kernel) -> Tensor:
    """The same-token values with an axis for tokens: of length one where they are alike."""
    return kernel.diagonal[..., None] if isinstance(kernel, Exchangeable) else kernel.diagonal
