"""A parameter used as a tensor of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import starts
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Law, Op, ParameterState
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class ParameterSource(Op):
    """A parameter used as a tensor of the network: biases, learned positions, class tokens, latents.

    Forward   `K = variance * same + average^2`, `same` telling which positions share entries
    Weights   total over entries `channels * sum_pp' same G`

    It has no input: the signal starts here. Exact.
    """

    carries = starts("independent entries")

    variance: float
    average: float
    same: Tensor
    shape: tuple[int, ...]
    channels: int

    def forward(self, *inputs: Signal) -> Signal:
        kernel = Dense(self.variance * self.same + self.average**2)
        return Signal(kernel, torch.full((len(self.same),), self.average, dtype=torch.float64), self.channels)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        return ()

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        total = self.channels * (gradient.kernel.values * self.same).sum()
        return [ParameterState("weight", self.shape, "source", self.variance, total / math.prod(self.shape))]

    def with_law(self, parameter: str, law: Law) -> ParameterSource:
        return replace(self, variance=law.variance, average=law.mean)
