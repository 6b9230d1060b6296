"""How concentrated attention rows are, and how much two rows share: the statistics all closed forms need."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.theory.ops.softmax import mean_overlap

# Regressions on Monte Carlo of softmax weights; both tend to 1 - 1/n as scores vanish.
_KEY_FIT = (0.762, 1.068, 0.192, -0.122)
_QUERY_FIT = (1.443, 1.065, 0.153, -0.127)
_SHARE_LIMIT = 0.4


def degrees_of_freedom(head_width: float, shared_width: float) -> float:
    """Effective chi-squared degrees of freedom of the score variance of one row."""
    return 1.0 / (1.0 / head_width + 2.0 / shared_width)


def row_overlap(count: Tensor, variance: Tensor, degrees: float) -> Tensor:
    """`Y = E sum_k A_ik^2` for a row over `count` keys with score variance `variance`."""
    return mean_overlap(count, variance, degrees)


def effective_variance(count: Tensor, overlap: Tensor, degrees: float) -> tuple[Tensor, Tensor]:
    """Effective score variance `log(n Y)` (saturating) and its share per degree of freedom."""
    effective = (count * overlap).clamp_min(1.0).log()
    return effective, (effective / degrees).clamp_max(_SHARE_LIMIT)


def pair_overlap(count: Tensor, overlap: Tensor, correlation: Tensor, share: Tensor, degrees: float) -> Tensor:
    """`n E sum_k A_ik A_jk` of two rows over the same `n` keys whose queries have the given correlation.

    Wide heads: `(n Y)^rho`, that is `e^{rho s}` for many keys; the rest is the finite-head factor.
    """
    wide = (count * overlap) ** correlation
    if math.isinf(degrees):
        return wide
    joint = (1.0 - correlation * share) ** 2 - share**2
    return wide * joint ** (-degrees / 2) * (1.0 - 2.0 * share) ** (correlation * degrees / 2)


def overlapping_correlation(correlation: Tensor, share: Tensor) -> Tensor:
    """Correlation of two queries, weighted by the overlap of their rows."""
    joint = (1.0 - correlation * share) ** 2 - share**2
    return (correlation * (1.0 - correlation * share) + share) / joint


def key_factor(count: Tensor, overlap: Tensor) -> Tensor:
    """Part of the score gradient that survives the softmax Jacobian, on the way to the keys."""
    return _logistic(count, overlap, _KEY_FIT)


def query_factor(count: Tensor, overlap: Tensor) -> Tensor:
    """The same on the way to the queries."""
    return _logistic(count, overlap, _QUERY_FIT)


def _logistic(count: Tensor, overlap: Tensor, fit: tuple[float, float, float, float]) -> Tensor:
    bounded = torch.minimum(overlap, torch.full_like(overlap, 1.0 - 1e-9)).clamp_min(1e-30)
    odds, excess = torch.logit(bounded), (count * bounded).clamp_min(1.0).log()
    value = torch.sigmoid(-(fit[0] + fit[1] * odds + fit[2] * excess + fit[3] * odds * excess))
    return torch.where(count > 1.0, value, torch.zeros_like(value))
