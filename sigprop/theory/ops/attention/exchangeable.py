"""Attention over exchangeable tokens with every key visible: closed form.

With `s0 = scale^2 d_k K_q K_k` the raw score variance, `r` token correlations (of queries, keys, values),
`s = (1 - r_k) s0` the part that survives softmax, `Y` the overlap of a row with itself and `X` of two rows:

    Var_o / K_v = r_v + (1-r_v)(s/d)(1-Y)^2 + Y/(1-p) [(1-r_v)(1 + 4(1-Y/2) log(nY)/d) + p r_v]
    Cov_o / K_v = r_v + r_q (1-r_v)(s/d)(1-Y)^2 + X (1-r_v)(1 + 2(1+r_q) log(nY)/d)

Backward, through values, queries and keys: rows of A sum to one, so the value gradients of all keys add up to the
gradients of all queries; the score gradients of a row sum to zero, so common parts of keys and values cancel.

Held-out accuracy for s0 <= 1 (50/90/99 %): Var_o 0.1/0.7/2.5 %, gradient 0.4/2.2/5.3 %; usable to s0 about 4.
Corrects dslm B.8, which leaves out the query and key paths and the correlation of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.kernels import Exchangeable
from sigprop.theory.ops.softmax import mean_overlap
from sigprop.theory.states import Status

if TYPE_CHECKING:
    from sigprop.theory.ops.attention.op import Attention


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


EVIDENCE = (Status.FITTED, "attention weights by fitted softmax overlaps")


@dataclass(frozen=True)
class ExchangeableWeights:
    """Statistics of the attention matrix."""

    raw_variance: Tensor
    variance: Tensor
    own_overlap: Tensor
    pair_overlap: Tensor
    effective: Tensor
    query_correlation: Tensor
    overlapping: Tensor
    key_factor: Tensor
    query_factor: Tensor
    keys: int


def correlation(kernel: Exchangeable) -> Tensor:
    return kernel.different / kernel.diagonal.clamp_min(torch.finfo(torch.float64).tiny)


def weights(op: Attention, query: Exchangeable, key: Exchangeable) -> ExchangeableWeights:
    raw = op.score_scale**2 * op.head_width * query.diagonal * key.diagonal
    variance = (raw * (1.0 - correlation(key))).clamp_min(0.0)
    count = torch.full_like(variance, float(key.tokens))
    degrees = degrees_of_freedom(op.head_width, op.shared_width)
    own = row_overlap(count, variance, degrees)
    effective, share = effective_variance(count, own, degrees)
    between = correlation(query)
    pair = torch.minimum(pair_overlap(count, own, between, share, degrees) / count, own)
    return ExchangeableWeights(
        raw,
        variance,
        own,
        pair,
        effective,
        between,
        overlapping_correlation(between, share),
        key_factor(count, own),
        query_factor(count, own),
        key.tokens,
    )


def mean(weights: ExchangeableWeights, value_mean: Tensor) -> Tensor:
    return value_mean


def forward(op: Attention, weights: ExchangeableWeights, query: Exchangeable, value: Exchangeable) -> Exchangeable:
    w, p, width = weights, op.dropout, op.shared_width
    r, rest = correlation(value), 1.0 - correlation(value)
    aligned = rest * w.variance / width * (1.0 - w.own_overlap) ** 2
    own = rest * (1.0 + 4.0 * (1.0 - w.own_overlap / 2) * w.effective / width) + p * r
    pair = rest * (1.0 + 2.0 * (1.0 + w.query_correlation) * w.effective / width)
    same = r + aligned + w.own_overlap / (1.0 - p) * own
    different = r + w.query_correlation * aligned + w.pair_overlap * pair
    return Exchangeable.of(value.diagonal * same, value.diagonal * different, query.tokens)


def backward(op: Attention, weights: ExchangeableWeights, gradient: Exchangeable, query, key, value):
    w, p, keys, queries = weights, op.dropout, weights.keys, gradient.tokens
    noise, per_key = p / (1.0 - p), queries / keys
    own, pair = gradient.diagonal * w.own_overlap, (queries - 1) * gradient.different * w.pair_overlap
    live_value = value.diagonal * (1.0 - correlation(value))
    live_key = key.diagonal * (1.0 - correlation(key))
    reach = op.score_scale**2 * op.head_width

    value_same = per_key * (own / (1.0 - p) + pair)
    value_different = _remainder(gradient.total(), per_key * (own + pair), keys)

    aligned = (1.0 - 1.0 / keys) * (1.0 - w.own_overlap) / op.shared_width
    query_same = reach * (
        gradient.diagonal * live_value * live_key * (aligned + w.own_overlap * w.query_factor)
        + noise * own * value.diagonal * live_key * w.key_factor
    )
    query_different = reach * gradient.different * live_value * live_key * (1.0 / op.shared_width + w.pair_overlap)

    signal = reach * per_key * query.diagonal * live_value * w.key_factor * (own + pair * w.overlapping)
    key_same = signal + reach * per_key * query.diagonal * value.diagonal * noise * own * w.key_factor
    key_different = -signal / max(keys - 1, 1)

    return (
        Exchangeable.of(query_same, query_different, queries),
        Exchangeable.of(key_same, key_different, keys),
        Exchangeable.of(value_same, value_different, keys),
    )


def _remainder(total: Tensor, same: Tensor, keys: int) -> Tensor:
    """Average over different keys when all key pairs add up to `total`."""
    return (total - keys * same) / max(keys * (keys - 1), 1)
