"""A slice of the channels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class Narrow(Op):
    """A slice of the channels: the same state; the gradient is spread over all channels."""

    share: float
    width: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        part = self.width / x.width
        fluctuation = 1.0 + (x.pair_fluctuation - 1.0) * part
        return replace(x, width=self.width, pair_fluctuation=fluctuation, pair_inherited=x.pair_inherited * part)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        kernel, alignment = gradient.kernel.scale(self.share), gradient.alignment * self.share
        return (Gradient(kernel, evidence=gradient.evidence, alignment=alignment, tilt=gradient.tilt * self.share),)
