"""Elementwise product of two independent tensors: the gate of SwiGLU and GeGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class Product(Op):
    """`z = x * y`, the two made by independent weights.

    Forward   `K_z = K_x K_y + C`, mean `m_x m_y`, `C` the covariance of the two kernels over networks
    Backward  `G_x = G_z K_y`, `G_y = G_z K_x`

    Exact in expectation for independent factors.
    """

    def forward(self, *inputs: Signal) -> Signal:
        x, y = inputs
        return Signal(
            x.kernel * y.kernel + _together(x, y),
            x.mean * y.mean,
            x.width,
            norm_fluctuation=x.norm_fluctuation + y.norm_fluctuation + 4.0,
            **_pairs(x, y),
            evidence=x.evidence.join(y.evidence),
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient]:
        x, y = inputs
        return (
            Gradient(gradient.kernel * y.kernel, evidence=gradient.evidence),
            Gradient(gradient.kernel * x.kernel, evidence=gradient.evidence),
        )


def _together(x: Signal, y: Signal) -> Kernel:
    """Factors made from one normalized input fluctuate with it: `C = sqrt(i_x i_y)/d sqrt(..) (1 - r_x^2) (1 - r_y^2)`.

    `i` is the inherited pair fluctuation and the second root that of the four same-token values. Of first order in
    1/width; for a factor that is not linear in the input its own cosine stands for the input's.
    """
    amount = torch.as_tensor(x.pair_inherited * y.pair_inherited).sqrt() / x.width
    return x.kernel.like(_apart(x.kernel) * _apart(y.kernel) * x.kernel.spread(amount))


def _apart(kernel: Kernel) -> Tensor:
    """`sqrt(K_tt K_ss) (1 - r^2)` of every pair."""
    root = kernel.diagonal.clamp_min(torch.finfo(kernel.values.dtype).tiny).sqrt()
    norms = kernel.left(root) * kernel.right(root)
    return norms - kernel.values**2 / norms


def _pairs(x: Signal, y: Signal) -> dict[str, Tensor | float]:
    """Fluctuation of pairs: fresh channels, and the factors' own in step.

    With `k` the average pair and `a` the mean square of the differences, `a_z = a_x a_y + k_x a_y + a_x k_y`. What one
    factor's pairs fluctuate counts `k` of the other. A channel's tokens differ by `a_x a_y + c_x^2 a_y + a_x c_y^2`,
    `c` the Gaussian part in common, which makes fresh channels fluctuate by `1 + 2 (k_x^2 a_y^2 + a_x^2 k_y^2)/a_z^2`.
    """
    if x.kernel.tokens < 2:
        return {}
    (k_x, a_x), (k_y, a_y) = ((item.kernel.pair_average(), item.kernel.apart()) for item in (x, y))
    total = (a_x * a_y + k_x * a_y + a_x * k_y).clamp_min(torch.finfo(a_x.dtype).tiny)

    def in_step(first: Tensor | float, second: Tensor | float) -> Tensor:
        one, two = (torch.as_tensor(item).clamp_min(0.0).sqrt() for item in (first, second))
        return ((a_x * k_y * one + k_x * a_y * two) / total) ** 2

    fresh = 1.0 + 2.0 * ((k_x * a_y) ** 2 + (a_x * k_y) ** 2) / total**2
    return {
        "pair_fluctuation": fresh + in_step(x.pair_fluctuation - 1.0, y.pair_fluctuation - 1.0),
        "pair_inherited": in_step(x.pair_inherited, y.pair_inherited),
    }
