"""Channels become positions: a new axis of independent outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries, ended
from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Op
from sigprop.theory.parts import ThroughActivation
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class ChannelsToPositions(Op):
    """A new position axis of `count` independent outputs, the last of the kernel's order.

    Forward   `K_y[(t,i), (t',i')] = delta_ii' C_x[t,t']` about the means
    Backward  the average over `i` of `G_y[(t,i), (t',i)]`

    Exact for channels that are independent draws of one law, of which those of an output of fresh weights are.

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
        if isinstance(x.kernel, Exchangeable):
            made = self._alike(x.covariance.exchangeable())
            return self.carries.signal(x, made.like(made.values + made.spread(x.mean**2)), x.mean)
        covariance = torch.kron(x.covariance.values, torch.eye(self.count, dtype=x.mean.dtype))
        mean = x.mean.repeat_interleave(self.count)
        return self.carries.signal(x, Dense(covariance + mean[:, None] * mean), mean)

    def _alike(self, covariance: Exchangeable) -> Exchangeable:
        """The average token and pair: of all pairs those at the same place of the new axis are as before."""
        before, tokens = covariance.tokens, covariance.tokens * self.count
        same = (before - 1) / max(tokens - 1, 1)
        return Exchangeable.of(covariance.diagonal, covariance.different * same, tokens)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (x,) = inputs
        through = gradient.through_activation
        below = tuple(
            replace(item, kernel=self._together(item.kernel), passed=self._together(item.passed))
            for item in through.gradients
        )
        through = ThroughActivation(below, through.gain_excess).collected(x)
        kernel = self._together(gradient.kernel).scale(1.0 / self.count)
        return (self.carries.gradient(gradient, kernel, through_activation=through),)

    def _together(self, kernel: Kernel) -> Kernel:
        """Sums over the new axis, at the same place of it in both positions of a pair."""
        rows = kernel.tokens // self.count
        if isinstance(kernel, Exchangeable):
            return Exchangeable(kernel.values * self.count, rows)
        values = kernel.values.reshape(rows, self.count, rows, self.count)
        return Dense(values.diagonal(dim1=1, dim2=3).sum(-1))
