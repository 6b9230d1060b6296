"""Positions written into a larger set of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class Scatter(Op):
    """`y_index(p) = x_p`, zero elsewhere; entries that meet add."""

    index: Tensor
    positions: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = Dense(scattered(x.kernel.values, self.index, self.positions))
        mean = torch.zeros(self.positions, dtype=x.mean.dtype).index_add(0, self.index, x.mean)
        return replace(x, kernel=kernel, mean=mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (gradient_of(gradient.kernel.values[self.index][:, self.index], gradient),)


def scattered(values: Tensor, index: Tensor, size: int) -> Tensor:
    rows = torch.zeros(size, values.shape[1], dtype=values.dtype).index_add(0, index, values)
    return torch.zeros(size, size, dtype=values.dtype).index_add(1, index, rows)
