"""Attention scores of a sampled pass at a bounded cost: a few queries of every head, evenly spread.

The scores of all queries would take as much memory as fused attention exists to save. A query's entropy, largest
weight and largest score need no other query, so some of them stand for all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sigprop.measurement.attention import multi_head_scores, score_summary, sdpa_scores
from sigprop.measurement.functions import SOFTMAXES
from sigprop.score_masks import allowed_scores

QUERIES = 64
ENTRIES = 1 << 22


def scores_of(function: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
    """Scores (..., some queries, keys) of a call that is attention; None for any other call."""
    if function is F.scaled_dot_product_attention:
        return _fused(*args, **kwargs)
    if function is F.multi_head_attention_forward:
        return _multi_head(*args, **kwargs)
    if function in SOFTMAXES:
        return _explicit(*args, **kwargs)
    return None


def summary(scores: Tensor) -> dict[str, Tensor | float]:
    """What `measure` says of scores, the largest score, and the entropy that equal weights would have."""
    found: dict[str, Tensor | float] = dict(score_summary(scores))
    with torch.no_grad():
        allowed = allowed_scores(scores)
        keys = allowed.sum(-1)
        open_queries = keys > 0
        found["largest_score"] = torch.where(allowed, scores.detach(), -torch.inf).amax()
        found["uniform_entropy"] = torch.where(open_queries, keys.clamp_min(1).log(), 0.0).sum() / open_queries.sum()
        found["entries"] = allowed.sum()
    return found


def _chosen(heads_and_examples: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """Evenly spread queries, the last among them: that one sees every key of a causal model."""
    count = min(queries, QUERIES, max(1, ENTRIES // max(1, heads_and_examples * keys)))
    return torch.linspace(queries - 1, 0, count, device=device).round().long().flip(0)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    with torch.no_grad():
        queries, keys = query.shape[-2], key.shape[-2]
        rows = _chosen(query.numel() // max(1, queries * query.shape[-1]), queries, keys, query.device)
        if is_causal:
            attn_mask = torch.arange(keys, device=query.device) <= rows[:, None]
        elif attn_mask is not None and attn_mask.dim() >= 2 and attn_mask.shape[-2] == queries:
            attn_mask = attn_mask[..., rows, :]
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return sdpa_scores(query[..., rows, :], key, value, attn_mask, scale=scale, enable_gqa=enable_gqa)


def _multi_head(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    heads = kwargs["num_heads"] if "num_heads" in kwargs else args[1]
    examples = query.shape[1] if query.dim() == 3 else 1
    rows = _chosen(heads * examples, len(query), len(key), query.device)
    mask = kwargs.get("attn_mask")
    if mask is not None:
        kwargs = {**kwargs, "attn_mask": mask[..., rows, :]}
    return multi_head_scores(query[rows], key, value, *args, **kwargs)


def _explicit(scores: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Tensor | None:
    """A softmax over the last axis of a stack of matrices."""
    if not scores.is_floating_point() or scores.dim() < 3 or dim not in (-1, scores.dim() - 1):
        return None
    queries, keys = scores.shape[-2:]
    rows = _chosen(scores.numel() // max(1, queries * keys), queries, keys, scores.device)
    return scores.detach()[..., rows, :]
