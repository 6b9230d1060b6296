"""A number that multiplies a tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class Scale(Op):
    """`y = factor * x`."""

    factor: float

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return replace(x, kernel=x.kernel.scale(self.factor**2), mean=x.mean * self.factor)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (replace(gradient.scale(self.factor**2), tilt=gradient.tilt * self.factor**2),)
