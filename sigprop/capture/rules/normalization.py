"""LayerNorm and RMSNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.fields.norms import affine, of_real, one_group
from sigprop.capture.fields.operands import weight_field
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.record import Call, Field, Weight
from sigprop.capture.registry import rule
from sigprop.graph.graph import Node
from sigprop.theory.ops.layer_norm import LayerNorm
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.rms_norm import RMSNorm


@rule("layer_norm")
def layer_norm(
    capture: Capture,
    call: Call,
    input: Field,
    normalized_shape: Sequence[int],
    weight: Weight | None = None,
    bias: Weight | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    return _norm(capture, call, input, len(normalized_shape), LayerNorm, eps, weight, bias)


@rule("rms_norm")
def rms_norm(
    capture: Capture,
    call: Call,
    input: Field,
    normalized_shape: Sequence[int],
    weight: Weight | None = None,
    eps: float | None = None,
) -> Any:
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return _norm(capture, call, input, len(normalized_shape), RMSNorm, eps, weight, None)


def _norm(
    capture: Capture,
    call: Call,
    x: Field,
    count: int,
    kind: type[LayerNorm],
    epsilon: float,
    weight: Weight | None,
    bias: Weight | None,
) -> Any:
    if isinstance(x, Tensor):
        function = torch.rms_norm if kind is RMSNorm else torch.layer_norm
        return of_real(capture, call, function(x, x.shape[x.dim() - count :], eps=epsilon), weight, bias)
    if isinstance(x, Weight):
        x = weight_field(capture, x)
    axes = [axis for dim in x.layout.dims[len(x.shape) - count :] for axis in dim]
    known = all(isinstance(item, Weight) or item is None for item in (weight, bias))
    if any(axis.is_position for axis in axes) or not known:
        return replayed(capture, call)
    width = math.prod(axis.size for axis in axes)
    groups = x.layout.channels // width
    told, bound = affine(weight, bias, groups)
    op = kind(epsilon=epsilon, affine=bool(bound), **told)

    def make(_: Field) -> Node:
        node = x.node if groups == 1 else one_group(capture, x.node, width, groups)
        node = capture.apply(op, node, weights=bound)
        return node if groups == 1 else capture.apply(Narrow(1.0, x.layout.channels), node)

    inputs = tuple(item for item in (x, weight, bias) if item is not None)
    made = Field(x.layout, make, sources=x.sources, call=call, inputs=inputs)
    _ = made.node
    return made
