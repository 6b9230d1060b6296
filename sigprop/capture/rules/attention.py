"""Attention, however it is spelt: fused, eager softmax(q k^T) v, or nn.MultiheadAttention's own products.

A product of two fields over channels gives *scores*: a field with a query axis and a key axis, kept as a replay
through scaling, masks, biases, soft-capping and softmax. A product of such weights with values is the attention op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import THINNED, Capture, rule
from sigprop.capture.layout import CHANNEL, KEY, Axis, Layout, are_streams, arranged, with_streams
from sigprop.capture.record import Call, Field, Weight, independent, united
from sigprop.capture.replayed_heads import ReplayedHeads
from sigprop.capture.rules.replayed import of_weights, replayed
from sigprop.theory.ops.attention import DrawnAttention
from sigprop.theory.ops.attention.drawn import VARIED


def attention_weights(
    query: Tensor,
    key: Tensor,
    groups: int,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """The weights that scaled_dot_product_attention applies to the values."""
    scores = attention_scores(query, key, groups, mask, is_causal, scale)
    return torch.dropout(scores.softmax(-1), dropout, train=dropout > 0)


def attention_scores(
    query: Tensor, key: Tensor, groups: int, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """The scores that scaled_dot_product_attention takes the softmax of."""
    if groups > 1:
        key = key.repeat_interleave(groups, -3)
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.transpose(-1, -2)
    if is_causal:
        scores = scores + scores.new_full(scores.shape[-2:], -torch.inf).triu(1)
    if mask is not None:
        scores = scores + (torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask)
    return scores


def weights_layout(query: Layout, key: Layout) -> Layout:
    """Layout of the weights of queries `[.., tokens, channels]` on keys of the same shape."""
    rank = len(key.dims)
    return pair_layout(query, key.permuted([*range(rank - 2), rank - 1, rank - 2]))


def pair_layout(first: Layout, second: Layout) -> Layout:
    """Layout of `first @ second`: the second's positions become keys when both have positions."""
    rows, columns = first.dims[-2], second.dims[-1]
    earlier = [a for dim in first.dims[:-1] for a in dim]
    if any(a.is_position for a in rows) or any(a in earlier for a in columns):
        columns = tuple(Axis(a.size, KEY) if a.is_position else a for a in columns)
    rank = max(len(first.dims), len(second.dims)) - 2
    front = []
    for place in range(-rank - 2, -2):
        mine = first.dims[place] if -place <= len(first.dims) else ()
        theirs = second.dims[place] if -place <= len(second.dims) else ()
        front.append(mine or theirs)
    dims = (*front, rows, columns)
    return arranged(dims, first.order)


def scored(capture: Capture, call: Call, first: Field, second: Field) -> Field:
    """Product of two fields: scores, the outer products of linear attention, or residual streams that are mixed."""
    layout = pair_layout(first.layout, second.layout)
    picks = first.is_choice and all(axis.is_position for axis in first.layout.dims[-1])
    if (picks or are_streams(layout.dims[-2])) and any(axis.role == CHANNEL for axis in layout.dims[-1]):
        layout = with_streams(layout, [len(layout.dims) - 2])
    return capture.drawn_field(layout, call, (first, second), "product of two tensors sampled")


def attended(capture: Capture, call: Call, weights: Field, value: Field) -> Field | None:
    """`weights @ value` over keys; None when this is not what the product is."""
    keys, tokens, channels = weights.layout.dims[-1], value.layout.dims[-2], value.layout.dims[-1]
    if not keys or any(a.role != KEY for a in keys) or any(a.role == KEY for d in weights.layout.dims[:-1] for a in d):
        return None
    if any(not a.is_position for a in tokens) or any(a.is_position for a in channels):
        return None
    if not independent(weights, value):
        return None
    weights = _of_all(capture, call, weights, value)
    layout = _out_layout(weights.layout, value.layout)
    if layout is None:
        return None
    capture.attentions += 1
    options, total = capture.options, lambda: capture.attentions
    single, thin = options.network is not None, THINNED in options.passes
    heads = ReplayedHeads(weights, value, layout, capture.seed(), capture.attentions, single, thin, total)
    node = capture.apply(DrawnAttention(heads), *(source.node for source in heads.parts), value.node)
    varied = capture.states.op(node).varied > VARIED
    sources: Any = united((weights, value)) if varied else None
    return Field(layout, lambda _: node, sources, is_drawn=varied, call=call, inputs=(weights, value))


def _of_all(capture: Capture, call: Call, weights: Field, value: Field) -> Field:
    """Weights that sequences of values share, one copy for each of them."""
    missing = len(value.layout.dims) - len(weights.layout.dims)
    dims, theirs = [()] * missing + list(weights.layout.dims), [()] * -missing + list(value.layout.dims)
    dims[:-2] = [
        mine or tuple(Axis(axis.size, axis.role) for axis in dim if axis.is_position)
        for mine, dim in zip(dims[:-2], theirs[:-2], strict=True)
    ]
    if dims == list(weights.layout.dims):
        return weights
    made = arranged(dims, weights.layout.order)
    expand = Call(torch.Tensor.expand, "expand", (weights, made.shape), {}, call.module)
    return capture.drawn_field(made, expand, (weights,), "attention weights")


def _out_layout(weights: Layout, value: Layout) -> Layout | None:
    """Shared dimensions, query positions, value channels; heads of values are those of the weights."""
    rank = max(len(weights.dims), len(value.dims)) - 2
    front: list[tuple[Axis, ...]] = []
    for place in range(-rank - 2, -2):
        mine = weights.dims[place] if -place <= len(weights.dims) else ()
        theirs = value.dims[place] if -place <= len(value.dims) else ()
        roles = [sorted({a.role == CHANNEL for a in dim}) for dim in (mine, theirs) if dim]
        if len(roles) == 2 and roles[0] != roles[1]:
            return None
        front.append(mine or theirs)
    return arranged((*front, weights.dims[-2], value.dims[-1]))


@rule("scaled_dot_product_attention")
def fused(
    capture: Capture,
    call: Call,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if not all(isinstance(item, Field) for item in (query, key, value)):
        return _sampled(capture, call)
    # the state of a sum with fixed numbers has only averages over heads
    if isinstance(attn_mask, Field) and attn_mask.call and all(isinstance(x, Weight) for x in attn_mask.call.records):
        attn_mask = of_weights(capture, attn_mask.call)
    options = (attn_mask, dropout_p, is_causal, scale)
    groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    inner = Call(attention_weights, "attention_weights", (query, key, groups, *options), {}, call.module)
    layout = weights_layout(query.layout, key.layout)
    fields = [item for item in (query, key, attn_mask) if isinstance(item, Field)]
    weights = capture.drawn_field(layout, inner, fields, "attention weights")
    found = attended(capture, call, weights, value)
    return found if found is not None else _sampled(capture, call)


def _sampled(capture: Capture, call: Call) -> Any:
    return replayed(capture, call, "attention sampled as a whole")
