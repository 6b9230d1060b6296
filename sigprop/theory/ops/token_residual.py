"""Residual sum with a branch that mixes tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import TRANSFORMED, Carries
from sigprop.theory.ops.drawn_token_linear import DrawnTokenLinear
from sigprop.theory.ops.residual import Residual
from sigprop.theory.states import Signal


@dataclass(frozen=True)
class TokenResidual(Residual):
    """`z = skip * x + f`, `f = down(phi(up(norm(x))))` over tokens with drawn matrices.

    Forward   `K_z = skip^2 K_x + K_f + skip (C + C^T)`, `C[t,t'] = Cov(x_t, f_t')` over channels
    Backward  as a plain residual (the cross terms have random signs and add up to order 1/tokens)

    `f` acts on each channel by itself, so it is correlated with `x`: by Stein's lemma
    `C = s (K up^T) diag(E phi') down^T`, with `K` the normalized kernel and `s` the scale of each token of `x`.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=TRANSFORMED,
        directions=TRANSFORMED,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    cross: Tensor | float = 0.0

    @staticmethod
    def covariance(
        x: Signal, normalized: Signal, up: DrawnTokenLinear, slopes: Tensor, down: DrawnTokenLinear
    ) -> Tensor:
        """`C`, with `slopes` the mean of `phi'` at each hidden token."""
        scale = x.covariance.diagonal.sqrt()
        return scale[..., :, None] * ((normalized.covariance.values @ up.matrix.T) * slopes) @ down.matrix.T

    def forward(self, *inputs: Signal) -> Signal:
        made = super().forward(*inputs)
        both = torch.as_tensor(self.cross * self.skip)
        return replace(made, kernel=made.kernel.like(made.kernel.values + both + both.transpose(-1, -2)))
