"""Channels become positions: a new axis of independent outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.gradient_through_activation import excess_of
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class ChannelsToPositions(Op):
    """A new position axis of `count` independent outputs, the last of the kernel's order."""

    count: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        covariance = torch.kron(x.covariance.values, torch.eye(self.count, dtype=x.mean.dtype))
        mean = x.mean.repeat_interleave(self.count)
        return replace(x, kernel=Dense(covariance + mean[:, None] * mean), mean=mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (x,) = inputs
        made = gradient_of(self._together(gradient.kernel.values) / self.count, gradient)
        gates = [replace(gate, kernel=Dense(self._together(gate.kernel.values)),
                         passed=Dense(self._together(gate.passed.values))) for gate in gradient.gates]  # fmt: skip
        return (replace(made, excess=excess_of(gates, x.kernel, x.mean).sum() + gradient.excess),)

    def _together(self, values: Tensor) -> Tensor:
        """Sums over the new axis, at the same place of it in both positions of a pair."""
        rows = len(values) // self.count
        return values.reshape(rows, self.count, rows, self.count).diagonal(dim1=1, dim2=3).sum(-1)
