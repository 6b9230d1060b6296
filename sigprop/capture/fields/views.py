"""The same numbers under another layout, and copies along new axes: the node is shared or gathered from."""

from __future__ import annotations

import torch

from sigprop.capture.capture import Capture
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Axis, Dim, Layout
from sigprop.capture.record import Call, Field
from sigprop.graph.graph import Node
from sigprop.theory.ops.gather import Gather


def viewed(item: Field, layout: Layout, call: Call) -> Field:
    """The same numbers under another layout."""
    return Field(
        layout,
        lambda _: item.node,
        sources=item.sources,
        root=item.base,
        function=item.function,
        slope=item.slope,
        statistic=item.statistic,
        centred=item.centred,
        transparent=item.transparent or item.is_source,
        call=call,
        inputs=(item,),
    )


def expanded(capture: Capture, call: Call, input: Field, shape: tuple[int, ...]) -> Field:
    """New axes are copies: of positions where the neighbours are positions, else of channels."""
    layout = input.layout
    dims: list[Dim] = [*[()] * (len(shape) - len(layout.dims)), *layout.dims]
    grown = [place for place, (dim, n) in enumerate(zip(dims, shape, strict=True)) if not dim and n > 1]
    if not grown:
        return viewed(input, Layout(tuple(dims), layout.order), call)
    for place in grown:
        dims[place] = (Axis(shape[place], _copied_role(layout, dims, place)),)
    added = tuple(dims[place][0] for place in grown if dims[place][0].is_position)
    result = Layout(tuple(dims), added + layout.order)
    return copied(capture, call, input, result)


def _copied_role(layout: Layout, dims: list, place: int) -> str:
    if (place > 0 and all(not dim for dim in dims[:place])) or place == 0:
        return TOKEN if any(a.role == BATCH for a in layout.order) else BATCH
    if place == len(dims) - 1 and layout.channels == 1:
        return CHANNEL
    before = [axis for dim in dims[:place] for axis in dim]
    return CHANNEL if any(axis.role == CHANNEL for axis in before) or not layout.order else TOKEN


def copied(capture: Capture, call: Call, input: Field, result: Layout) -> Field:
    """Copies along axes that the input does not have (they come first in the kernel's order)."""
    times = result.positions // input.layout.positions
    copies = result.channels / input.layout.channels
    index = torch.arange(input.layout.positions).repeat(times)
    if times == 1 and copies == 1:
        return viewed(input, result, call)

    def make(_: Field) -> Node:
        return capture.apply(Gather(index, copies, result.channels), input.node)

    made = Field(result, make, sources=input.sources, call=call, inputs=(input,))
    if input.statistic is not None:
        made.statistic, made.root, made.function = input.statistic, input.base, input.function
    return made


def copied_like(capture: Capture, item: Field, others: list[Layout]) -> Field:
    """A field whose copies were taken for tokens, beside one that has channels there (keys that all heads share): its
    copies are those channels."""
    for other in others:
        item = _copied_like(capture, item, other)
    return item


def _copied_like(capture: Capture, item: Field, other: Layout) -> Field:
    if item.call is not None and item.call.name == "clone" and isinstance(item.inputs[0], Field):
        inner = _copied_like(capture, item.inputs[0], other)
        return item if inner is item.inputs[0] else inner
    if item.call is None or item.call.name != "expand" or len(item.layout.dims) != len(other.dims):
        return item
    source = item.inputs[0]
    assert isinstance(source, Field)
    before = ((),) * (len(item.shape) - len(source.shape)) + source.layout.dims
    dims = tuple(
        theirs if dim and not old and theirs and all(axis.role == CHANNEL for axis in theirs) else dim
        for dim, old, theirs in zip(item.layout.dims, before, other.dims, strict=True)
    )
    kept = {axis for dim in dims for axis in dim}
    made = Layout(dims, tuple(axis for axis in item.layout.order if axis in kept))
    return item if made.dims == item.layout.dims else copied(capture, item.call, source, made)
