"""Fused attention: the weights as the product they stand for, applied to the values."""

from __future__ import annotations

from typing import Any

from sigprop.capture.capture import Capture, rule
from sigprop.capture.fields.attention import attended, attention_weights, weights_layout
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.record import Call, Field


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
