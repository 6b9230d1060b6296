"""Channels become positions: a new axis of independent outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries, ended
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.parts import ThroughActivation
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class ChannelsToPositions(Op):
    """A new position axis of `count` independent outputs, the last of the kernel's order.

    Forward   `K_y[(t,i), (t',i')] = delta_ii' C_x[t,t']` about the means
    Backward  the average over `i` of `G_y[(t,i), (t',i)]`

    What `E (sum g x)^2` of one channel has beyond independence is summed over the new axis.
    """

    carries = Carries(
        fluctuation=KEPT,
        common=KEPT,
        directions=KEPT,
        along_signal=ended("the slope of one output on another is not followed into the channels"),
        through_activation=TRANSFORMED,
    )

    count: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        covariance = torch.kron(x.covariance.values, torch.eye(self.count, dtype=x.mean.dtype))
        mean = x.mean.repeat_interleave(self.count)
        return self.carries.signal(x, Dense(covariance + mean[:, None] * mean), mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (x,) = inputs
        through = gradient.through_activation
        below = tuple(
            replace(item, kernel=self._together(item.kernel.values), passed=self._together(item.passed.values))
            for item in through.gradients
        )
        through = ThroughActivation(below, through.gain_excess).collected(x)
        kernel = self._together(gradient.kernel.values).scale(1.0 / self.count)
        return (self.carries.gradient(gradient, kernel, through_activation=through),)

    def _together(self, values: Tensor) -> Dense:
        """Sums over the new axis, at the same place of it in both positions of a pair."""
        rows = len(values) // self.count
        return Dense(values.reshape(rows, self.count, rows, self.count).diagonal(dim1=1, dim2=3).sum(-1))
