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

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.kernels import Exchangeable
from sigprop.theory.ops.attention.overlaps import AttentionRows, overlapping_correlation
from sigprop.theory.states import Status

if TYPE_CHECKING:
    from sigprop.theory.ops.attention.op import Attention

EVIDENCE = (Status.FITTED, "attention weights by fitted softmax overlaps")


def correlation(kernel: Exchangeable) -> Tensor:
    return kernel.different / kernel.diagonal.clamp_min(torch.finfo(torch.float64).tiny)


def weights(op: Attention, query: Exchangeable, key: Exchangeable) -> AttentionRows:
    raw = op.score_scale**2 * op.head_width * query.diagonal * key.diagonal
    variance = (raw * (1.0 - correlation(key))).clamp_min(0.0)
    return AttentionRows.of(op, raw, variance, torch.tensor(float(key.tokens), dtype=torch.float64))


def mean(weights: AttentionRows, value_mean: Tensor) -> Tensor:
    return value_mean


def forward(
    op: Attention, weights: AttentionRows, query: Exchangeable, key: Exchangeable, value: Exchangeable
) -> Exchangeable:
    w, p, width = weights, op.dropout, op.common_width
    r, rest, between = correlation(value), 1.0 - correlation(value), correlation(query)
    aligned = rest * w.variance / width * (1.0 - w.own_overlap) ** 2
    own = rest * (1.0 + 4.0 * (1.0 - w.own_overlap / 2) * w.effective / width) + p * r
    pair = rest * (1.0 + 2.0 * (1.0 + between) * w.effective / width)
    same = r + aligned + w.own_overlap / (1.0 - p) * own
    different = r + between * aligned + w.growth(between) / w.count * pair
    return Exchangeable.of(value.diagonal * same, value.diagonal * different, query.tokens)


def backward(op: Attention, weights: AttentionRows, gradient: Exchangeable, query, key, value):
    w, p, keys, queries = weights, op.dropout, key.tokens, gradient.tokens
    noise, per_key, between = p / (1.0 - p), queries / keys, correlation(query)
    overlap = w.growth(between) / w.count
    own, pair = gradient.diagonal * w.own_overlap, (queries - 1) * gradient.different * overlap
    live_value = value.diagonal * (1.0 - correlation(value))
    live_key = key.diagonal * (1.0 - correlation(key))
    reach = op.score_scale**2 * op.head_width

    value_same = per_key * (own / (1.0 - p) + pair)
    value_different = _remainder(gradient.total(), per_key * (own + pair), keys)

    aligned = (1.0 - 1.0 / keys) * (1.0 - w.own_overlap) / op.common_width
    query_same = reach * (
        gradient.diagonal * live_value * live_key * (aligned + w.own_overlap * w.query_factor)
        + noise * own * value.diagonal * live_key * w.key_factor
    )
    query_different = reach * gradient.different * live_value * live_key * (1.0 / op.common_width + overlap)

    seen = own + pair * overlapping_correlation(between, w.share)
    signal = reach * per_key * query.diagonal * live_value * w.key_factor * seen
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
