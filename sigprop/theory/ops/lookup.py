"""Rows of a table, chosen by ids."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.carries import starts
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Law, ParameterState
from sigprop.theory.ops.parameter_source import ParameterSource
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class Lookup(ParameterSource):
    """`x_p = E[id_p]`: rows of a parameter; `same` tells which positions read one row.

    Forward   `K = (variance * same + average^2) drawn_p drawn_p'`: 0 at rows that are set to zero
    Weights   total over entries `channels * sum_pp' same G` over the positions whose row is `trained`

    It has no input: the signal starts here. Exact.
    """

    carries = starts("independent rows")

    multiplies = False
    drawn: Tensor
    trained: Tensor
    zero_share: float = 0.0
    """Of the rows, those that are set to zero: a law is that of all."""

    def with_law(self, parameter: str, law: Law) -> Lookup:
        if not self.zero_share:
            return replace(self, variance=law.variance, average=law.mean)
        mean = law.mean / (1.0 - self.zero_share)
        return replace(self, variance=law.second_moment / (1.0 - self.zero_share) - mean**2, average=mean)

    def forward(self, *inputs: Signal) -> Signal:
        kernel = (self.variance * self.same + self.average**2) * self.drawn[:, None] * self.drawn
        return Signal(Dense(kernel), self.average * self.drawn, self.channels)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        pairs = gradient.kernel.values * self.same * self.trained[:, None] * self.trained
        level = self.channels * pairs.sum() / math.prod(self.shape)
        return [ParameterState("weight", self.shape, "source", self.variance, level)]
