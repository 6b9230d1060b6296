"""A parameter that multiplies a tensor entry by entry."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.corrections.along_signal import aligned_gain
from sigprop.theory.corrections.gates import excess_of
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Law, ParameterState
from sigprop.theory.ops.modulate import Factors
from sigprop.theory.states import EXACT, GIVEN, Evidence, Gradient, Signal, Status

FEW, ACROSS = 16, 0.8
"""Entries for all channels of a position, and radial share, up to which fluctuations between entries count."""
FEW_NUMBERS = "few numbers that scale a tensor, under a gradient across it"


@dataclass(frozen=True, eq=False)
class Gain(Factors):
    """`y = w * x`, `w` a parameter; `same[p,p']` tells whether two positions share its entries.

    Forward   as `Factors`, `E[c c'] = mean^2 + variance * same`
    Backward  likewise
    Weights   total over entries `channels * sum_pp' same G K`, what the alignment of the gradient adds, and what an
              activation of the result does (see `ThroughActivation`); of a gradient across `y` less, the fewer they are
    """

    second_moment: float
    mean: float
    same: Tensor
    shape: tuple[int, ...]
    channels: int
    unevenness: float = 1.0

    def square(self, kernel: Kernel) -> Tensor:
        return self.mean**2 + (self.second_moment - self.mean**2) * self.same

    @property
    def even(self) -> float:
        return self.mean**2 / self.second_moment if self.second_moment else 1.0

    @property
    def _entries(self) -> float:
        """How many entries one position sees: each scales its part of the channels."""
        return math.prod(self.shape) / max(float((1.0 / self.same.sum(1)).sum()), 1.0)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        square = max(self.second_moment, 1e-300)
        pairs, common = (
            gradient.kernel.values * x.kernel.values,
            aligned_gain(gradient, x.kernel.scale(square)) / square,
        )
        found = gradient.through_activation.gradients
        if found and self.mean:
            made = self.forward(x)
            pairs = pairs + excess_of(found, made.kernel, made.mean) / self.mean**2
        seen = gradient.directions.along_part(1.0 / self._entries)
        total = self.channels * ((pairs * self.same).sum() * seen + common)
        return [ParameterState("weight", self.shape, "gain", 0.0, total / math.prod(self.shape))]

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        if inputs[0].fluctuation is GIVEN and isinstance(gradient.along_signal.slope, Tensor):
            return Evidence(Status.ASSUMED, "gain of given numbers, under a gradient along them")
        if self._entries <= FEW < self.channels and float(gradient.directions.radial) < ACROSS:
            return Evidence(Status.ASSUMED, FEW_NUMBERS)
        return EXACT

    def with_law(self, parameter: str, law: Law) -> Gain:
        return replace(self, second_moment=law.second_moment, mean=law.mean, unevenness=law.unevenness)
