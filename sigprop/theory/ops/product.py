"""Elementwise product of two independent tensors: the gate of SwiGLU and GeGLU."""

from __future__ import annotations

from dataclasses import dataclass

from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class Product(Op):
    """`z = x * y`, the two made by independent weights.

    Forward   `K_z = K_x K_y`, mean `m_x m_y`
    Backward  `G_x = G_z K_y`, `G_y = G_z K_x`

    Exact in expectation for independent factors.
    """

    def forward(self, *inputs: Signal) -> Signal:
        x, y = inputs
        return Signal(
            x.kernel * y.kernel,
            x.mean * y.mean,
            x.width,
            norm_fluctuation=x.norm_fluctuation + y.norm_fluctuation + 4.0,
            evidence=x.evidence.join(y.evidence),
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient]:
        x, y = inputs
        return (
            Gradient(gradient.kernel * y.kernel, evidence=gradient.evidence),
            Gradient(gradient.kernel * x.kernel, evidence=gradient.evidence),
        )
