"""Dropout in training mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class Dropout(Op):
    """`y = x * mask / (1 - p)`, masks independent over tokens and channels.

    Forward and backward alike: same-token second moments are divided by `1 - p`, all others stay.
    Exact in expectation (dslm B.3).
    """

    probability: Tensor | float

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return replace(x, kernel=x.kernel.scale_diagonal(1.0 / (1.0 - self.probability)))

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (
            replace(
                gradient, kernel=gradient.kernel.scale_diagonal(1.0 / (1.0 - self.probability)), gates=(), excess=0.0
            ),
        )
