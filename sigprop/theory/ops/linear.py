"""Linear map with independent zero-mean weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.gradient_along_signal import applied
from sigprop.theory.gradient_through_activation import Gate
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class Linear(Op):
    """`y = W x + b`, `Var W = variance`, `Var b = bias_variance`.

    Forward   `K_y = fan_in * variance * K_x + bias_variance`, mean 0
    Backward  `G_x = fan_out * variance * G_y`
              and what the mean `W^T W` makes of the part of the gradient along the signal (see `Gradient.tilt`)
    Weights   `E[(dL/dW)^2] = sum_tt' G_y K_x` per entry; bias `sum_tt' G_y`

    Exact in expectation over the weights, for any correlation across channels (dslm B.2), given the kernels of one
    network. Those of an input and of the slopes of an activation `f` that follows fluctuate together. With `H` the
    gradient above it, `c = fan_in variance K` and `v` the relative variance of the product of two tokens, the weights
    gain `e = fan_in variance v sum_tt' H E[f'' f''] K_t K_t' (1 - r^2)^2`; and the gain of a norm below gains
    `fan_out variance (1 + 2/(v width)) e`, the 2 being the weights' own share in the slopes.
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
            pair_inherited=x.pair_origin * (self.fan_out / x.width),
            evidence=x.evidence,
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        kernel = gradient.kernel.scale(self.fan_out * self.variance)
        (x,) = inputs
        excess = self._together(gradient, x) * (1.0 + 2.0 / x.pair_fluctuation) * self.fan_out * self.variance
        if not isinstance(gradient.tilt, Tensor):
            return (Gradient(kernel, evidence=gradient.evidence, excess=excess),)
        alignment = gradient.alignment * (self.fan_out / self.fan_in)
        tilt = gradient.tilt * self.fan_out * self.variance
        kernel = kernel.like(kernel.values + _tilted(inputs[0].kernel.values, tilt, alignment))
        return (Gradient(kernel, evidence=gradient.evidence, alignment=alignment, tilt=tilt, excess=excess),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight = gradient.kernel.contract(x.kernel) + self._together(gradient, x) + self._along_itself(gradient, x)
        found = [ParameterState("weight", (self.fan_out, self.fan_in), self.role, self.variance, weight)]
        if self.bias_variance is not None:
            bias = gradient.kernel.total().clamp_min(0.0)
            found.append(ParameterState("bias", (self.fan_out,), "bias", self.bias_variance, bias))
        return found

    def _along_itself(self, gradient: Gradient, x: Signal) -> Tensor | float:
        """The tilt gives the weights a gradient along themselves: `variance (tr(B K)^2 + tr(B K B K))`."""
        if not isinstance(gradient.tilt, Tensor):
            return 0.0
        moved = applied(gradient.tilt, x.kernel.values)
        return self.variance * (moved.diagonal().sum() ** 2 + (moved * moved.T).sum())

    def _together(self, gradient: Gradient, x: Signal) -> Tensor | float:
        """What fluctuations of pairs add, the curvature `E f'' f''` being taken at the average pair."""
        return sum((self._of_gate(gate, x) for gate in gradient.gates), start=0.0)

    def _of_gate(self, gate: Gate, x: Signal) -> Tensor | float:
        kernel, spread = x.kernel, x.pair_fluctuation / x.width
        if kernel.tokens < 2:
            return 0.0
        level = kernel.token_average(kernel.diagonal)
        gain = self.fan_in * self.variance / gate.share
        shift, bias = spread**0.5 * level * gain, 0.0 if self.bias_variance is None else self.bias_variance
        pair = kernel.pair_average() * gain + bias
        variance = level * gain + bias
        pairs = torch.stack((pair + shift, pair - shift)).clamp(-variance, variance)
        high, low = gate.function.derivative_cross_moment(variance, variance, pairs)
        apart = gate.kernel.values * (1.0 - kernel.normalized().values ** 2) ** 2
        return kernel.like(apart).total() * (high - low) / 2.0 * spread**0.5 * level


def _tilted(kernel: Tensor, tilt: Tensor, alignment: Tensor | float) -> Tensor:
    """`E (g_t + tilt_t x_t)(g_t' + tilt_t' x_t')` less that of `g`."""
    both = applied(tilt, applied(tilt, kernel).T)
    if not isinstance(alignment, Tensor):
        return both
    shared = applied(tilt, alignment)
    return both + shared + shared.T
