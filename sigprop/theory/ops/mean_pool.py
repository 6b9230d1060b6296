"""Mean over tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries
from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Op
from sigprop.theory.parts import AlongSignal
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class MeanPool(Op):
    """`y = (1/T) sum_t x_t`: one token.

    Forward   `K_y = (1/T^2) sum_tt' K_x`
    Backward  every pair of tokens gets `G_y / T^2`; the slope likewise

    What of the fluctuation of norms and of directions remains: see `TokenMap`.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=KEPT,
        directions=TRANSFORMED,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        value = x.kernel.total() / x.kernel.tokens**2
        kernel = _one_token(x.kernel, value)
        mean = torch.zeros_like(kernel.diagonal) + x.kernel.per_token(x.kernel.token_average(x.mean))
        in_step = x.covariance.in_step()
        fluctuation = replace(x.fluctuation, norm=2.0 + (x.fluctuation.norm - 2.0) * in_step)
        return self.carries.signal(x, kernel, mean, fluctuation=fluctuation)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        x = inputs[0].kernel
        shared = gradient.kernel.diagonal if isinstance(x, Exchangeable) else gradient.kernel.diagonal[..., 0]
        values = torch.zeros_like(x.values) + x.spread(shared / x.tokens**2)
        slope, count = gradient.along_signal.slope, x.tokens
        if isinstance(slope, torch.Tensor):
            slope = slope.flatten()[0] / count**2 * torch.ones(count, count, dtype=values.dtype)
        through = gradient.through_activation.collected(output)
        part = x.total() / (x.tokens**2 * x.token_average(x.diagonal).clamp_min(1e-300))
        directions = replace(gradient.directions, radial=gradient.directions.along_part(part))
        parts = {"directions": directions, "along_signal": AlongSignal(slope), "through_activation": through}
        return (self.carries.gradient(gradient, x.like(values), **parts),)


def _one_token(kernel: Kernel, value: torch.Tensor) -> Kernel:
    if isinstance(kernel, Exchangeable):
        return Exchangeable.of(value, value, 1)
    return Dense(value[..., None, None])
