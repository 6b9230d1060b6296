"""Mean over tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class MeanPool(Op):
    """`y = (1/T) sum_t x_t`: one token.

    Forward   `K_y = (1/T^2) sum_tt' K_x`
    Backward  every pair of tokens gets `G_y / T^2`
    """

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        value = x.kernel.total() / x.kernel.tokens**2
        kernel = _one_token(x.kernel, value)
        mean = torch.zeros_like(kernel.diagonal) + x.kernel.per_token(x.kernel.token_average(x.mean))
        return Signal(kernel, mean, x.width, evidence=x.evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        x = inputs[0].kernel
        shared = gradient.kernel.diagonal if isinstance(x, Exchangeable) else gradient.kernel.diagonal[..., 0]
        values = torch.zeros_like(x.values) + x.spread(shared / x.tokens**2)
        return (Gradient(x.like(values), evidence=gradient.evidence),)


def _one_token(kernel: Kernel, value: torch.Tensor) -> Kernel:
    if isinstance(kernel, Exchangeable):
        return Exchangeable.of(value, value, 1)
    return Dense(value[..., None, None])
