"""Fixed numbers that multiply a tensor entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class Modulate(Op):
    """`y = c * x` with fixed numbers `c`, given by their kernel and mean over channels; also masks of 0 and 1."""

    kernel: Tensor
    mean: Tensor

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return replace(x, kernel=Dense(x.kernel.values * self.kernel), mean=x.mean * self.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (gradient_of(gradient.kernel.values * self.kernel, gradient),)
