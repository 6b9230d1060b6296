"""Attention in a trace: which tensors become scores, which are mixed, and what one sample of the weights looks like."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.record import Field, Record
from sigprop.capture.replay import Replay
from sigprop.capture.replayed_heads import heads_of
from sigprop.capture.rules.attention import attention_weights
from sigprop.graph.evaluate import Evaluation

FUSED = "scaled_dot_product_attention"
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
DROPOUT = 4
"""Place of the dropout among the arguments of `attention_weights`."""


class WithoutDropout(Replay):
    """One sample of what a model computes when nothing is dropped: a weight of zero is then a masked one."""

    def _call(self, record: Record) -> Tensor:
        call = record.call
        if call is not None and call.name == "dropout":
            return self.values[call.args[0]]
        if call is not None and call.name == "attention_weights":
            given: list[Any] = [self.values[item] if isinstance(item, Record) else item for item in call.args]
            given[DROPOUT] = 0.0
            return attention_weights(*given)
        return super()._call(record)


@dataclass(frozen=True, eq=False)
class FoundAttention:
    """One attention: the fields behind its scores, the field of its values."""

    item: Field
    scores: tuple[Field, ...]
    value: Field

    def sample(self, states: Evaluation) -> Tensor:
        """Attention weights `[..., query, key]` from one sample of the predicted states."""
        replay = WithoutDropout(states, torch.Generator().manual_seed(0))
        heads = heads_of(self.item.node.op)
        if heads is not None:
            return replay(heads.weight)
        named = given_to(self.item)
        query, key = (replay(field) for field in self.scores)
        mask, causal, scale = (named.get(name) for name in ("attn_mask", "is_causal", "scale"))
        return attention_weights(query, key, query.shape[-3] // key.shape[-3], mask, 0.0, bool(causal), scale)


def given_to(item: Field) -> dict[str, Any]:
    """The arguments of a fused attention by name."""
    call = item.call
    assert call is not None
    return dict(zip(ARGUMENTS, call.args, strict=False)) | call.kwargs


def attention_at(item: Field) -> FoundAttention | None:
    """The attention that a field is the result of, fused or spelt out."""
    heads = heads_of(item.node.op) if item.is_made else None
    if heads is not None and len(item.inputs) == 2:
        return FoundAttention(item, (heads.weight,), heads.value)
    if item.call is not None and item.call.name == FUSED:
        fields = [given_to(item)[name] for name in ARGUMENTS[:3]]
        if all(isinstance(field, Field) for field in fields):
            return FoundAttention(item, (fields[0], fields[1]), fields[2])
    return None


def visible_keys(found: FoundAttention, states: Evaluation) -> Tensor:
    """Per query, the number of keys with a weight above zero."""
    weights = found.sample(states)
    return (weights.reshape(-1, *weights.shape[-2:])[0] > 0).sum(-1).double()


def score_variance(weights: Tensor) -> float:
    """Variance of the scores over the keys that a query sees, averaged over queries, from their softmax."""
    weights = weights.double()
    logarithms = torch.where(weights > 0, weights.log(), math.nan)
    centred = logarithms - logarithms.nanmean(-1, keepdim=True)
    several = (weights > 0).sum(-1) > 1
    return float(centred.square().nanmean(-1)[several].mean()) if bool(several.any()) else 0.0
