"""Entries taken from a field and put elsewhere: slices, and any rearrangement, by following labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.fields.views import viewed
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Axis, Layout, Misaligned
from sigprop.capture.record import Call, Field, Source
from sigprop.graph.graph import Node
from sigprop.theory.ops.gather import Gather
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.positions_to_channels import PositionsToChannels


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
    new = (Axis(count, dim[0].role),) if count > 1 else ()
    dims = list(item.layout.dims)
    dims[place] = new
    layout = Layout(tuple(dims), item.layout.order)
    sources, transparent = item.sources, item.transparent or item.is_source
    if len(dim) == 1 and span[2] == 1 and transparent:
        sources = tuple(Source(s.field, (*s.ranges, (dim[0], span[0], span[1]))) for s in sources)
    share = layout.channels / item.layout.channels

    def make(_: Field) -> Node:
        return capture.apply(Narrow(share, layout.channels), item.node)

    return Field(layout, make, sources, transparent=transparent, call=call, output=output, inputs=(item,))


def _position_slice(capture: Capture, call: Call, item: Field, place: int, keep: Tensor, output: int | None) -> Field:
    dim = item.layout.dims[place]
    role = dim[0].role if len(dim) == 1 else TOKEN
    dims = list(item.layout.dims)
    dims[place] = (Axis(len(keep), role),) if len(keep) > 1 else ()
    order = tuple(a for d in dims for a in d if a.is_position)
    layout = Layout(tuple(dims), order)
    index = item.layout.index().index_select(place, keep).flatten()

    def make(_: Field) -> Node:
        return capture.apply(Gather(index), item.node)

    return Field(layout, make, sources=item.sources, call=call, output=output, inputs=(item,))


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
        dims.append((Axis(n, role),) if n > 1 else ())
    layout = Layout(tuple(dims), tuple(a for dim in dims for a in dim if a.is_position))
    rows = layout.to_rows(labels)
    copies = layout.channels / input.layout.channels
    uniform = bool((rows == rows[:, :1]).all())

    def make(_: Field) -> Node:
        if uniform:
            return capture.apply(Gather(rows[:, 0], copies, layout.channels), input.node)
        return capture.apply(PositionsToChannels(rows.unique(dim=1), layout.channels), input.node)

    return Field(layout, make, sources=input.sources, call=call, inputs=(input,))


def reshaped(capture: Capture, call: Call, input: Field, shape: tuple[int, ...]) -> Field:
    """The numbers in another shape: a view where its dimensions keep their roles."""
    try:
        return viewed(input, input.layout.reshaped(shape), call)
    except Misaligned:
        return moved(capture, call, input)
