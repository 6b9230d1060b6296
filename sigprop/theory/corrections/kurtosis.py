"""Channels that are not quite Gaussian together: squares at two positions vary otherwise than their covariance says.

With unit variances and covariance `K`, `c = Cov(x_t^2, x_t'^2) - 2 K_tt'^2` is zero for Gaussian channels. It is of
order one over the number of independent numbers behind a channel, and small at every pair; but the sum over many
positions of a function like ReLU, in which products of positions cancel, is made of it. Channels that have

- `n` weights of excess kurtosis `k`:  `c = k (1 + 2 K^2) / n`; rows of one length are as `k = -2`
- been divided by their own std over `n` positions:  the squares add up to `n` in each, so that with `S = 2 K^2 + c` and
  the averages `r` and `m` of it over one and both positions `c = S - r - r' + m - 2 K^2`

What follows is of first order in `c`. By the Edgeworth series `Cov(f(x_t), f(x_t'))` has `E f''(x_t) E f''(x_t') c / 4`
beside what it has for Gaussian numbers, and the mean of one over a mean square `v`, which varies by `2 tr K^2 / n^2`
otherwise, has in its place that and the average of `c`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense, Kernel

if TYPE_CHECKING:
    from sigprop.theory.activations.base import ActivationFunction

SMALL = 0.01
"""The kurtosis of a sum of weights, below which it is left out."""

ROUNDING = 1e-14
"""Of the largest variance, what is left where nothing is."""


def of_weights(kurtosis: float, entries: int, brought: Kernel, output: Kernel) -> Tensor | None:
    """That of outputs of so many weights each, which bring such a kernel to them."""
    if not isinstance(output, Dense) or output.values.ndim > 2 or abs(kurtosis) < SMALL * entries:
        return None
    level = output.diagonal.clamp_min(1e-300)
    part = brought.diagonal / level
    cosine = brought.normalized().values.clamp(-1.0, 1.0)
    return kurtosis / entries * (1.0 + 2.0 * cosine**2) * part[:, None] * part


def over_batch(unit: Tensor, before: Tensor | None) -> Tensor:
    """That of channels behind a norm over the batch, of kernel `unit`."""
    level = unit.diagonal()
    usual = 2.0 * unit**2
    squares = usual if before is None else usual + before * level[:, None] * level
    row = squares.mean(1)
    across = row[:, None] * level
    return (squares - across - across.T + squares.mean() * level[:, None] * level - usual) / (
        level[:, None] * level
    ).clamp_min(1e-300)


def between(function: ActivationFunction, variance: Tensor, mean: Tensor, kurtosis: Tensor) -> Tensor:
    """What the covariances of a function at two positions have beyond those of Gaussian numbers; its mean squares are
    left as they are, those of ReLU being exact."""
    curved = function.radial.mean(variance, mean) - mean * function.derivative_mean(variance, mean)
    curved = curved.where(variance > ROUNDING * variance.max(), 0.0)
    found = curved[:, None] * curved * kurtosis / 4.0
    return found - torch.diag(found.diagonal())


def of_distinct(function: ActivationFunction, covariance: Kernel, mean: Tensor, kurtosis: Tensor) -> Tensor:
    """The same, less where two positions are nearly one: their covariance is nearly that mean square."""
    cosine = covariance.normalized().dense().values.clamp(-1.0, 1.0)
    return between(function, covariance.diagonal, mean, kurtosis) * (1.0 - cosine**4)
