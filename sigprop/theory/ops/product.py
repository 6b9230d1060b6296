"""Elementwise product of two independent tensors: the gate of SwiGLU and GeGLU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import applied, diagonal, weighted
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import ALL_TRANSFORMED, AlongSignal, Fluctuation, Gradient, Signal, ended


@dataclass(frozen=True)
class Product(Op):
    """`z = x * y`, the two made by independent weights.

    Forward   `K_z = K_x K_y + C`, mean `m_x m_y`, `C` the covariance of the two kernels over networks
    Backward  `G_x = G_z K_y`, `G_y = G_z K_x`; the slope of a gradient along `z` becomes `S = B K_y` and `B K_x`, and
              the four factors `y` of its square add `S K_x S^T` and `B_tt B_ss K_x K_y^2` to `G_x` (Gaussian `y`)

    What is along `z` is along each factor, `g_x x = g_z z`; of what is uniform over channels a factor's mean keeps its
    part. Exact in expectation for independent factors.
    """

    carries = ALL_TRANSFORMED.but(
        common=ended("the channels of one factor multiply what those of the other have in common"),
        through_activation=ended("a function of a product is no function of one factor"),
    )

    by_position = True

    def forward(self, *inputs: Signal) -> Signal:
        x, y = inputs
        kernel, evidence = x.kernel * y.kernel + _together(x, y), x.evidence.join(y.evidence)
        return self.carries.signal(x, kernel, x.mean * y.mean, evidence=evidence, fluctuation=_fluctuation(x, y))

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient]:
        x, y = inputs
        return self._through(gradient, x, y), self._through(gradient, y, x)

    def _through(self, gradient: Gradient, own: Signal, other: Signal) -> Gradient:
        slope, kernel = gradient.along_signal.slope, other.kernel
        made = gradient.kernel * kernel
        if isinstance(slope, Tensor):
            made = made.like(made.values + _fourth_moments(slope, own.kernel.values, other))
        even = kernel.token_average(other.mean**2) / kernel.level.clamp_min(1e-300)
        return self.carries.gradient(
            gradient,
            made,
            directions=replace(gradient.directions, uniform=1.0 + (gradient.directions.uniform - 1.0) * even),
            along_signal=AlongSignal(weighted(slope, kernel.values)),
        )

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(inputs[1 - number].mean)


def _fourth_moments(slope: Tensor, own: Tensor, other: Signal) -> Tensor:
    """`sum_uv B_tu B_sv K_x[u,v] (K_y[t,u] K_y[s,v] + K_y[t,v] K_y[s,u] - 2 m_t m_s m_u m_v)`.

    Of the second term less `m_t m_s m_u m_v` what is linear in the covariance, and its square for a diagonal `B`.
    """
    kernel, level, mean = other.kernel.values, diagonal(slope), other.mean
    means = mean[:, None] * mean
    moved, even, covariance = weighted(slope, kernel), weighted(slope, means), kernel - means
    first = applied(moved, applied(moved, own).T) - applied(even, applied(even, own).T)
    spread = applied(slope, mean[:, None] * own)
    linear = mean[:, None] * applied(slope, (covariance * spread).T)
    return first + linear + linear.T + level[:, None] * own * covariance**2 * level


def _together(x: Signal, y: Signal) -> Kernel:
    """Factors made from one normalized input fluctuate with it: `C = sqrt(i_x i_y)/d sqrt(..) (1 - r_x^2) (1 - r_y^2)`.

    `i` is the inherited pair fluctuation and the second root that of the four same-token values. Of first order in
    1/width; for a factor that is not linear in the input its own cosine stands for the input's.
    """
    amount = torch.as_tensor(x.fluctuation.pair_inherited * y.fluctuation.pair_inherited).sqrt() / x.width
    return x.kernel.like(_apart(x.kernel) * _apart(y.kernel) * x.kernel.spread(amount))


def _apart(kernel: Kernel) -> Tensor:
    """`sqrt(K_tt K_ss) (1 - r^2)` of every pair."""
    root = kernel.diagonal.clamp_min(torch.finfo(kernel.values.dtype).tiny).sqrt()
    norms = kernel.left(root) * kernel.right(root)
    return norms - kernel.values**2 / norms


def _scatter(x: Signal) -> Tensor:
    """Relative variance of the squared entries: 2 for Gaussian ones, less where they have a mean."""
    even = x.kernel.token_average(x.mean**2) / x.kernel.level.clamp_min(1e-300)
    return 2.0 - 2.0 * even.clamp_max(1.0) ** 2


def _fluctuation(x: Signal, y: Signal) -> Fluctuation:
    """Fluctuation of pairs: fresh channels, and the factors' own, correlated.

    With `k` the average pair and `a` the mean square of the differences, `a_z = a_x a_y + k_x a_y + a_x k_y`. What one
    factor's pairs fluctuate counts `k` of the other. A channel's tokens differ by `a_x a_y + c_x^2 a_y + a_x c_y^2`,
    `c` the Gaussian part in common, which makes fresh channels fluctuate by `1 + 2 (k_x^2 a_y^2 + a_x^2 k_y^2)/a_z^2`.
    """
    one, two = x.fluctuation, y.fluctuation
    norm = one.norm + two.norm + _scatter(x) * _scatter(y)
    if x.kernel.tokens < 2:
        return Fluctuation(norm)
    (k_x, a_x), (k_y, a_y) = ((item.kernel.pair_average(), item.kernel.apart()) for item in (x, y))
    total = (a_x * a_y + k_x * a_y + a_x * k_y).clamp_min(torch.finfo(a_x.dtype).tiny)

    def correlated(first: Tensor | float, second: Tensor | float) -> Tensor:
        mine, theirs = (torch.as_tensor(item).clamp_min(0.0).sqrt() for item in (first, second))
        return ((a_x * k_y * mine + k_x * a_y * theirs) / total) ** 2

    fresh = 1.0 + 2.0 * ((k_x * a_y / total) ** 2 + (a_x * k_y / total) ** 2)
    pair = fresh + correlated(one.pair - 1.0, two.pair - 1.0)
    return Fluctuation(norm, pair, correlated(one.pair_inherited, two.pair_inherited))
