"""The same numbers under another layout, and copies along new axes: the node is shared or gathered from."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Axis, Dim, Layout, Misaligned, arranged, fresh, resized
from sigprop.capture.record import Call, Field, Source
from sigprop.theory.ops.gather import Gather
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.positions_to_channels import PositionsToChannels


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
    known = {}
    if input.statistic is not None:
        known = {"statistic": input.statistic, "root": input.base, "function": input.function}
    return capture.field_of(Gather(index, copies, result.channels), input, result, call, **known)


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


# -- Entries taken from a field and put elsewhere: slices, and any rearrangement, by following labels


def sliced(
    capture: Capture,
    call: Call,
    item: Field,
    place: int,
    start: int,
    stop: int,
    step: int = 1,
    output: int | None = None,
) -> Field:
    """Entries `start:stop:step` of one dimension."""
    layout, dim = item.layout, item.layout.dims[place]
    count = len(range(start, stop, step))
    if count == 0:
        return torch.empty([0 if d == place else n for d, n in enumerate(item.shape)])  # type: ignore[return-value]
    if count == item.shape[place]:
        return viewed(item, layout, call)
    kinds = {axis.is_position for axis in dim}
    if kinds == {False}:
        return _channel_slice(capture, call, item, place, (start, stop, step), count, output)
    keep = torch.arange(start, stop, step)
    if kinds == {True}:
        return _position_slice(capture, call, item, place, keep, output)
    function = _selector(place, keep)
    return moved(capture, Call(function, "getitem", (item,), {}, call.module), item)


def _selector(place: int, keep: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x.index_select(place, keep)


def _channel_slice(
    capture: Capture, call: Call, item: Field, place: int, span: tuple[int, int, int], count: int, output: int | None
) -> Field:
    dim = item.layout.dims[place]
    dims = list(item.layout.dims)
    dims[place] = resized(dim, count)
    layout = Layout(tuple(dims), item.layout.order)
    sources, transparent = item.sources, item.transparent or item.is_source
    if len(dim) == 1 and span[2] == 1 and transparent:
        sources = tuple(Source(s.field, (*s.ranges, (dim[0], span[0], span[1]))) for s in sources)
    op = Narrow(layout.channels / item.layout.channels, layout.channels)
    return capture.field_of(op, item, layout, call, sources=sources, transparent=transparent, output=output)


def _position_slice(capture: Capture, call: Call, item: Field, place: int, keep: Tensor, output: int | None) -> Field:
    dim = item.layout.dims[place]
    role = dim[0].role if len(dim) == 1 else TOKEN
    dims = list(item.layout.dims)
    dims[place] = fresh(len(keep), role)
    index = item.layout.index().index_select(place, keep).flatten()
    return capture.field_of(Gather(index), item, arranged(dims), call, output=output)


def moved(capture: Capture, call: Call, input: Field) -> Field:
    """Run the function on the kernel row of every entry and see where each entry of the result comes from."""
    labels = call.on(input.layout.labels().double().contiguous(), input).long()
    varies = [bool((labels != labels.narrow(d, 0, 1)).any()) for d in range(labels.dim())] if labels.numel() else []
    tokens = max(1, input.layout.positions // max(input.layout.sequences, 1))
    dims: list[tuple[Axis, ...]] = []
    for d, n in enumerate(labels.shape):
        role = CHANNEL
        if n > 1 and varies[d]:
            first = labels.narrow(d, 0, 1)
            role = BATCH if bool((labels % tokens == first % tokens).all()) and input.layout.sequences > 1 else TOKEN
        dims.append(fresh(n, role))
    layout = arranged(dims)
    rows = layout.to_rows(labels)
    copies = layout.channels / input.layout.channels
    if bool((rows == rows[:, :1]).all()):
        return capture.field_of(Gather(rows[:, 0], copies, layout.channels), input, layout, call)
    make = lambda _: capture.apply(PositionsToChannels(rows.unique(dim=1), layout.channels), input.node)  # noqa: E731
    return Field(layout, make, sources=input.sources, call=call, inputs=(input,))


def reshaped(capture: Capture, call: Call, input: Field, shape: tuple[int, ...]) -> Field:
    """The numbers in another shape: a view where its dimensions keep their roles."""
    try:
        return viewed(input, input.layout.reshaped(shape), call)
    except Misaligned:
        return moved(capture, call, input)


# -- Which pixels the windows of a convolution see


def image_windows(
    layout: Layout,
    shape: tuple[int, ...],
    rank: int,
    size: tuple[int, ...],
    stride: Any,
    padding: Any,
    dilation: Any,
) -> Tensor:
    """`[offset, position]`: the kernel row that each offset of the window sees, -1 outside the image."""

    def each(value: Any) -> tuple[int, ...]:
        return (value,) * rank if isinstance(value, int) else tuple(value) * (rank if len(value) == 1 else 1)

    steps, gaps = each(stride), each(dilation)
    if isinstance(padding, str):
        before = tuple(g * (k - 1) // 2 if padding == "same" else 0 for g, k in zip(gaps, size, strict=True))
    else:
        before = each(padding)
    rows = layout.index()
    rows = rows.reshape(-1, *rows.shape[-rank:])
    found = []
    for offset in itertools.product(*(range(k) for k in size)):
        places, inside = [], []
        for d in range(rank):
            place = torch.arange(shape[len(shape) - rank + d]) * steps[d] - before[d] + offset[d] * gaps[d]
            inside.append((place >= 0) & (place < rows.shape[1 + d]))
            places.append(place.clamp(0, rows.shape[1 + d] - 1))
        grid = rows
        live = torch.ones((), dtype=torch.bool)
        for d in range(rank):
            grid = grid.index_select(1 + d, places[d])
            live = live[..., None] & inside[d]
        found.append(torch.where(live, grid, -1).flatten())
    return torch.stack(found)
