"""Slices, permutations and repeats of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.scatter import scattered
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class Gather(Op):
    """`y_p = x_index(p)`: slices, permutations and repeats of positions.

    `copies`: each entry of `x` also feeds that many channels, whose gradients add as independent.
    """

    index: Tensor
    copies: float = 1.0
    width: int | None = None

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = Dense(x.kernel.values[self.index][:, self.index])
        return replace(x, kernel=kernel, mean=x.mean[self.index], width=self.width or x.width)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        size = len(inputs[0].mean)
        made = gradient_of(scattered(gradient.kernel.values, self.index, size) * self.copies, gradient)
        if not isinstance(gradient.tilt, Tensor):
            return (made,)
        if gradient.tilt.ndim == 1:
            tilt = torch.zeros(size, dtype=torch.float64).index_add(0, self.index, gradient.tilt)
        else:
            tilt = scattered(gradient.tilt, self.index, size)
        carried = gradient.alignment
        carried = scattered(carried, self.index, size) if isinstance(carried, Tensor) else carried
        return (replace(made, alignment=carried * self.copies, tilt=tilt * self.copies),)
