"""Convolution of real numbers, the input of the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.carries import starts
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Law, Op, ParameterState
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class InputConvolution(Op):
    """A convolution of real numbers: `gram[p,p']` is the inner product of the windows at two positions, `sums` theirs.

    Forward   mean `m = mean * sums + bias_mean`, `K = variance * gram + bias_variance + m m'`
    Weights   total `channels_out * sum_pp' G gram`

    It has no input to send a gradient to: real numbers are given. Exact.

    `centred` weights (see `Linear`) take the gram of windows about their means.
    """

    carries = starts("independent weights make independent channels of given numbers")

    gram: Tensor
    channels_out: int
    variance: float
    bias_variance: float | None
    sums: Tensor
    fan_in: int
    centred: bool = False
    mean: float = 0.0
    bias_mean: float = 0.0

    def forward(self, *inputs: Signal) -> Signal:
        mean = self.sums * self.mean + self.bias_mean
        values = self.gram * self.variance + (self.bias_variance or 0.0) + mean[:, None] * mean
        return Signal(Dense(values), mean, self.channels_out)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        return ()

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        weight = (gradient.kernel.values * self.gram).sum() / self.fan_in
        found = [ParameterState("weight", (self.channels_out, self.fan_in), "input", self.variance, weight)]
        if self.bias_variance is not None:
            found.append(ParameterState("bias", (self.channels_out,), "bias", 0.0, gradient.summed()))
        return found

    def with_law(self, parameter: str, law: Law) -> InputConvolution:
        if parameter == "weight":
            return replace(self, variance=law.variance, mean=law.mean)
        return replace(self, bias_variance=law.variance, bias_mean=law.mean)
