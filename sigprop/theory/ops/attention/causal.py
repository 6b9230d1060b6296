"""Causal attention over tokens that were exchangeable before the mask, averaged over positions.

Position `n` sees `n` keys. With `Y_n` the overlap of its row and `X(n, n') = (n Y_n)^r / n'` that of two rows, the
formulas of `exchangeable.py` hold per position; this file averages them over positions, which keeps the state
exchangeable and costs O(T). The average hides that early positions collect most of the gradient: over many layers
use the dense state (`dense.py`), this one is a preview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.kernels import Exchangeable
from sigprop.theory.ops.attention.exchangeable import correlation, mean
from sigprop.theory.ops.attention.overlaps import AttentionRows, overlapping_correlation
from sigprop.theory.states import Status

if TYPE_CHECKING:
    from sigprop.theory.ops.attention.op import Attention

__all__ = ["EVIDENCE", "backward", "forward", "mean", "weights"]
EVIDENCE = (Status.ASSUMED, "causal mask averaged over positions")


def weights(op: Attention, query: Exchangeable, key: Exchangeable) -> AttentionRows:
    """Per position, the last axis."""
    raw = op.score_scale**2 * op.head_width * query.diagonal * key.diagonal
    variance = (raw * (1.0 - correlation(key))).clamp_min(0.0)[..., None]
    count = torch.arange(1.0, key.tokens + 1, dtype=torch.float64)
    return AttentionRows.of(op, raw, variance.expand(*variance.shape[:-1], key.tokens), count)


def _pair_mean(values: Tensor) -> Tensor:
    """Average over pairs `n < n'` of `values_n / n'`."""
    tokens = values.shape[-1]
    share = 1.0 / torch.arange(1.0, tokens + 1, dtype=torch.float64)
    later = share.flip(0).cumsum(0).flip(0) - share
    return 2.0 * (values * later).sum(-1) / max(tokens * (tokens - 1), 1)


def forward(
    op: Attention, weights: AttentionRows, query: Exchangeable, key: Exchangeable, value: Exchangeable
) -> Exchangeable:
    w, p, width = weights, op.dropout, op.common_width
    r, between = correlation(value), correlation(query)
    rest, bend = 1.0 - r, w.variance[..., 0] / width
    own = w.own_overlap.mean(-1)
    same = r + rest * bend * (1.0 - own) + own / (1.0 - p) * (rest * (1.0 + 4.0 * bend) + p * r)
    pair = _pair_mean(w.growth(between[..., None]))
    different = r + rest * pair * (1.0 + 2.0 * (1.0 + between) * bend) + between * rest * bend * (1.0 - pair)
    return Exchangeable.of(value.diagonal * same, value.diagonal * different, query.tokens)


def backward(op: Attention, weights: AttentionRows, gradient: Exchangeable, query, key, value):
    w, p, tokens = weights, op.dropout, gradient.tokens
    noise, reach = p / (1.0 - p), op.score_scale**2 * op.head_width
    own = gradient.diagonal * w.own_overlap.mean(-1)
    others = (tokens - 1) * gradient.different
    between = correlation(query)[..., None]
    growth = w.growth(between)
    pair = others * _pair_mean(growth)
    live_value = value.diagonal * (1.0 - correlation(value))
    live_key = key.diagonal * (1.0 - correlation(key))

    value_same = own / (1.0 - p) + pair
    value_different = (gradient.total() / tokens - own - pair) / max(tokens - 1, 1)

    aligned = ((1.0 - 1.0 / w.count) * (1.0 - w.own_overlap)).mean(-1) / op.common_width
    seen = (w.own_overlap * w.query_factor).mean(-1)
    dropped = noise * (w.own_overlap * w.key_factor).mean(-1) * value.diagonal * live_key
    query_same = reach * gradient.diagonal * (live_value * live_key * (aligned + seen) + dropped)
    shared = 1.0 / op.common_width + _pair_mean(growth)
    query_different = reach * gradient.different * live_value * live_key * shared

    signal = gradient.diagonal * (w.own_overlap * w.key_factor).mean(-1)
    signal = signal + others * _pair_mean(growth * w.key_factor * overlapping_correlation(between, w.share))
    signal = reach * query.diagonal * live_value * signal
    dropped_key = gradient.diagonal * (w.own_overlap * w.key_factor).mean(-1)
    key_same = signal + reach * query.diagonal * value.diagonal * noise * dropped_key
    key_different = -signal / max(tokens - 1, 1)

    return (
        Exchangeable.of(query_same, query_different, tokens),
        Exchangeable.of(key_same, key_different, tokens),
        Exchangeable.of(value_same, value_different, tokens),
    )
