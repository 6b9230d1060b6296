"""Linear map with independent zero-mean weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class Linear(Op):
    """`y = W x + b`, `Var W = variance`, `Var b = bias_variance`.

    Forward   `K_y = fan_in * variance * K_x + bias_variance`, mean 0
    Backward  `G_x = fan_out * variance * G_y`
              and what the mean `W^T W` makes of the part of the gradient along the signal (see `Gradient.tilt`)
    Weights   `E[(dL/dW)^2] = sum_tt' G_y K_x` per entry; bias `sum_tt' G_y`

    Exact in expectation over the weights, for any correlation across channels (dslm B.2).
    """

    fan_in: int
    fan_out: int
    variance: Tensor | float
    bias_variance: Tensor | float | None = None
    role: str = "hidden"

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = x.kernel.scale(self.fan_in * self.variance)
        if self.bias_variance is not None:
            kernel = kernel.like(kernel.values + kernel.spread(self.bias_variance))
        return Signal(
            kernel,
            torch.zeros_like(x.mean) + torch.zeros_like(kernel.diagonal),
            self.fan_out,
            norm_fluctuation=2.0 + x.norm_fluctuation * (self.fan_out / self.fan_in),
            pair_fluctuation=1.0 + x.pair_fluctuation * (self.fan_out / x.width),
            evidence=x.evidence,
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        kernel = gradient.kernel.scale(self.fan_out * self.variance)
        if not isinstance(gradient.tilt, Tensor):
            return (Gradient(kernel, evidence=gradient.evidence),)
        alignment = gradient.alignment * (self.fan_out / self.fan_in)
        tilt = gradient.tilt * self.fan_out * self.variance
        kernel = kernel.like(kernel.values + _tilted(inputs[0].kernel.values, tilt, alignment))
        return (Gradient(kernel, evidence=gradient.evidence, alignment=alignment, tilt=tilt),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight = gradient.kernel.contract(x.kernel)
        found = [ParameterState("weight", (self.fan_out, self.fan_in), self.role, self.variance, weight)]
        if self.bias_variance is not None:
            bias = gradient.kernel.total()
            found.append(ParameterState("bias", (self.fan_out,), "bias", self.bias_variance, bias))
        return found


def _tilted(kernel: Tensor, tilt: Tensor, alignment: Tensor | float) -> Tensor:
    """`E (g_t + tilt_t x_t)(g_t' + tilt_t' x_t')` less that of `g`."""
    shared = tilt[:, None] * alignment
    return tilt[:, None] * kernel * tilt + shared + (shared.T if isinstance(shared, Tensor) else 0.0)
