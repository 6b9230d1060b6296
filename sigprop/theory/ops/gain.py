"""A parameter that multiplies a tensor entry by entry."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.gain_gradient import aligned_gain
from sigprop.theory.gradient_through_activation import excess_of
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class Gain(Op):
    """`y = w * x`, `w` a parameter; `same[p,p']` tells whether two positions share its entries.

    Weights   total over entries `channels * sum_pp' same G K`, what the alignment of the gradient adds, and what an
              activation of the result does (see `Gate`)
    """

    second_moment: float
    mean: float
    same: Tensor
    shape: tuple[int, ...]
    channels: int

    def _factor(self) -> Tensor:
        return self.mean**2 + (self.second_moment - self.mean**2) * self.same

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return replace(x, kernel=Dense(x.kernel.values * self._factor()), mean=x.mean * self.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        made = gradient_of(gradient.kernel.values * self._factor(), gradient)
        return (replace(made, alignment=gradient.alignment, tilt=gradient.tilt * self.second_moment),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        pairs, common = gradient.kernel.values * x.kernel.values, aligned_gain(gradient, x.kernel)
        if gradient.gates and self.mean:
            made = self.forward(x)
            pairs = pairs + excess_of(gradient.gates, made.kernel, made.mean) / self.mean**2
        total = self.channels * ((pairs * self.same).sum() + common)
        return [ParameterState("weight", self.shape, "gain", 0.0, total / math.prod(self.shape))]
