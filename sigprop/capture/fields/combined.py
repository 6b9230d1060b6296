"""Two operands, entry by entry: sums and products of tensors that share no randomness, gains, fixed factors."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from sigprop.capture.broadcast import (
    common_layout,
    concrete_kernel,
    concrete_rows,
    layout_like,
    outer_streams,
    with_streams,
)
from sigprop.capture.capture import Capture
from sigprop.capture.fields.operands import aligned, as_field, weight_sharing
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.layout import KEY, LARGEST, Misaligned
from sigprop.capture.record import Call, Field, Weight, independent, united
from sigprop.capture.sums import entangled, summed
from sigprop.errors import UnsupportedError
from sigprop.graph.graph import Node
from sigprop.theory.ops.gain import Gain
from sigprop.theory.ops.modulate import Modulate
from sigprop.theory.ops.product import Product
from sigprop.theory.ops.residual import Residual


def combined(capture: Capture, call: Call, first: Any, second: Any, op: Residual | Product) -> Any:
    """Sum or product of two tensors, at least one of them a field; independent ones have a rule."""
    if not isinstance(first, Field) and not isinstance(second, Field):
        return replayed(capture, call)
    if any(isinstance(item, complex) for item in (first, second)):
        return replayed(capture, call)
    if any(isinstance(x, Field) and (_has_keys(x) or x.layout.positions > LARGEST) for x in (first, second)):
        return replayed(capture, call)
    first, second = _as_fields(capture, first, second)
    try:
        layout, (own_first, own_second) = common_layout([first.layout, second.layout])
    except Misaligned:
        return replayed(capture, call)
    curved = first.is_curved or second.is_curved or isinstance(op, Product)
    if (curved and not independent(first, second)) or any(a.role == KEY for dim in layout.dims for a in dim):
        return replayed(capture, call)
    if isinstance(op, Product) and (streams := outer_streams(layout, own_first, own_second)):
        make = lambda made: capture.sampled(made, "outer product of channels sampled")  # noqa: E731
        wide = with_streams(layout, streams)
        return Field(wide, make, united((first, second)), call=call, inputs=(first, second))
    try:
        left, right = aligned(capture, first, layout, own_first), aligned(capture, second, layout, own_second)
        if entangled(capture, op, left, right):
            return replayed(capture, call)
        node = summed(capture, op, left, right) if isinstance(op, Residual) else capture.apply(op, left, right)
    except UnsupportedError:  # a mask of infinities, or a table over pairs of tokens
        return replayed(capture, call)
    gaussian = isinstance(op, Residual) and not first.is_curved and not second.is_curved
    sources: Any = None if gaussian else united((first, second))
    return Field(layout, lambda _: node, sources, call=call, inputs=(first, second))


def _as_fields(capture: Capture, first: Any, second: Any) -> tuple[Field, Field]:
    """Both as fields; a weight or a real tensor takes the roles of the dimensions it is aligned with."""
    model = first if isinstance(first, Field) else second
    left, right = (
        item if isinstance(item, Field) else as_field(capture, item, layout_like(model.layout, tuple(item.shape)))
        for item in (first, second)
    )
    return left, right


def gained(capture: Capture, call: Call, field: Field, weight: Weight) -> Any:
    """A field times a weight, which is one number for each of its entries."""
    if _has_keys(field):
        return replayed(capture, call)
    own = layout_like(field.layout, weight.shape)
    try:
        layout, (own_field, _) = common_layout([field.layout, own])
    except Misaligned:
        return replayed(capture, call)
    law = weight.distribution
    node = aligned(capture, field, layout, own_field)
    op = Gain(law.second_moment, law.mean, weight_sharing(weight, layout), weight.shape, layout.channels)
    made = capture.apply(op, node, weights={"weight": (weight, math.prod(weight.shape))})
    return Field(layout, lambda _: made, sources=field.sources, call=call, inputs=(field, weight))


def fixed_factor(capture: Capture, call: Call, field: Field, numbers: Tensor) -> Any:
    """A field times real numbers."""
    if _has_keys(field):
        return replayed(capture, call)
    own = layout_like(field.layout, tuple(numbers.shape))
    try:
        layout, (own_field, _) = common_layout([field.layout, own])
    except Misaligned:
        return replayed(capture, call)

    def make(_: Field) -> Node:
        kernel, mean = concrete_kernel(concrete_rows(numbers, layout))
        return capture.apply(Modulate(kernel, mean), aligned(capture, field, layout, own_field))

    return Field(layout, make, sources=field.sources, call=call, inputs=(field,))


def _has_keys(item: Any) -> bool:
    return isinstance(item, Field) and any(a.role == KEY for dim in item.layout.dims for a in dim)
