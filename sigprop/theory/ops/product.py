"""Elementwise product of two independent tensors: the gate of SwiGLU and GeGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
            pair_fluctuation=_pair_fluctuation(x, y),
            evidence=x.evidence.join(y.evidence),
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient]:
        x, y = inputs
        return (
            Gradient(gradient.kernel * y.kernel, evidence=gradient.evidence),
            Gradient(gradient.kernel * x.kernel, evidence=gradient.evidence),
        )


def _pair_fluctuation(x: Signal, y: Signal) -> Tensor | float:
    """Fresh channels; the fluctuations of one factor count as much as the tokens of the other are alike, in step."""
    if x.kernel.tokens < 2:
        return 1.0
    inherited = _alike(y) * _inherited(x) + _alike(x) * _inherited(y)
    return 1.0 + inherited**2


def _alike(x: Signal) -> Tensor:
    return x.kernel.cosine_average()


def _inherited(x: Signal) -> Tensor:
    return (torch.as_tensor(x.pair_fluctuation) - 1.0).clamp_min(0.0).sqrt()
