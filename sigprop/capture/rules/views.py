"""The same numbers under another layout, and copies along new axes: the node is shared or gathered from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.functions import SAME
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Axis, Dim, Layout, Misaligned, arranged, fresh, resized, size
from sigprop.capture.record import Call, Field, Record, Source, Weight, mapped, no_state, on_meta, result_shape
from sigprop.capture.rules.operands import how_chosen, remember_choice, routing_of
from sigprop.capture.rules.replayed import kept, of_weights, replayed
from sigprop.theory.ops.gather import Gather
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.positions_to_channels import PositionsToChannels

COMPARED = "entries picked because they are large, taken as any"


def viewed(item: Field, layout: Layout, call: Call) -> Field:
    """The same numbers under another layout."""
    known = {"slope": item.slope, "statistic": item.statistic, "centred": item.centred}
    return item.entrywise(lambda _: item.node, item.function, call, layout=layout, **known)


def expanded(capture: Capture, call: Call, input: Field, shape: tuple[int, ...]) -> Field:
    """New axes are copies: of positions where the neighbours are positions, or where an average over these was, else of
    channels."""
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
    averaged = place >= len(dims) - 2 and all(axis.role == BATCH for axis in layout.order)
    heads = any(axis.role == CHANNEL for axis in before) and not averaged
    return CHANNEL if heads or not layout.order else TOKEN


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
    if not isinstance(source, Field):
        return item
    before = ((),) * (len(item.shape) - len(source.shape)) + source.layout.dims
    dims = tuple(
        theirs if dim and not old and theirs and all(axis.role == CHANNEL for axis in theirs) else dim
        for dim, old, theirs in zip(item.layout.dims, before, other.dims, strict=True)
    )
    kept = {axis for dim in dims for axis in dim}
    made = Layout(dims, tuple(axis for axis in item.layout.order if axis in kept))
    return item if made.dims == item.layout.dims else copied(capture, item.call, source, made)


# -- Entries taken from a field and put elsewhere: slices, and any rearrangement, by following labels


def taken(
    capture: Capture,
    call: Call,
    item: Field,
    place: int,
    start: int,
    stop: int | None = None,
    output: int | None = None,
) -> Field:
    """Entries `start:stop` of one dimension, or one entry without it, as a call gives them, or one of its results."""
    piece = sliced(capture, call, item, place, start, start + 1 if stop is None else stop)
    if isinstance(piece, Field):
        piece = viewed(piece, _dropped(piece.layout, place), call) if stop is None else piece
        piece.call, piece.output = call, output
    return piece


def sliced(capture: Capture, call: Call, item: Field, place: int, start: int, stop: int, step: int = 1) -> Field:
    """Entries `start:stop:step` of one dimension."""
    layout, dim = item.layout, item.layout.dims[place]
    count = len(range(start, stop, step))
    if count == 0:
        return torch.empty([0 if d == place else n for d, n in enumerate(item.shape)])  # type: ignore[return-value]
    if count == item.shape[place]:
        return viewed(item, layout, call)
    kinds = {axis.is_position for axis in dim}
    if kinds == {False}:
        return _channel_slice(capture, call, item, place, (start, stop, step), count)
    keep = torch.arange(start, stop, step)
    if kinds == {True}:
        return _position_slice(capture, call, item, place, keep)
    return moved(capture, Call(torch.index_select, "getitem", (item, place, keep), {}, call.module), item)


def _channel_slice(
    capture: Capture, call: Call, item: Field, place: int, span: tuple[int, int, int], count: int
) -> Field:
    dim = item.layout.dims[place]
    dims = list(item.layout.dims)
    dims[place] = resized(dim, count)
    layout = Layout(tuple(dims), item.layout.order)
    sources, transparent = item.sources, item.transparent or item.is_source
    if len(dim) == 1 and span[2] == 1 and transparent:
        sources = tuple(Source(s.field, (*s.ranges, (dim[0], span[0], span[1]))) for s in sources)
    op = Narrow(layout.channels / item.layout.channels, layout.channels, taken=(place - len(item.shape), *span))
    return capture.field_of(op, item, layout, call, sources=sources, transparent=transparent)


def _position_slice(capture: Capture, call: Call, item: Field, place: int, keep: Tensor) -> Field:
    dim = item.layout.dims[place]
    role = dim[0].role if len(dim) == 1 else TOKEN
    dims = list(item.layout.dims)
    dims[place] = fresh(len(keep), role)
    index = item.layout.index().index_select(place, keep).flatten()
    return capture.field_of(Gather(index), item, arranged(dims), call)


def moved(capture: Capture, call: Call, input: Field, routing: Field | None = None) -> Field:
    """Run the function on the kernel row of every entry and see where each entry of the result comes from.

    `routing`: the drawn choice by which entries were picked, if one was. Weights that see them then are in doubt, and
    so are entries that were themselves compared.
    """
    if call.name == "getitem" and (pairs := _pairs(capture, call, input)) is not None:
        return pairs
    labels = call.on(input.layout.labels().float().contiguous(), input)  # exact, as there are fewer than 2^24
    varies = [bool((labels != labels.narrow(d, 0, 1)).any()) for d in range(labels.dim())] if labels.numel() else []
    tokens = max(1, input.layout.positions // max(input.layout.sequences, 1))
    dims: list[tuple[Axis, ...]] = []
    for d, n in enumerate(labels.shape):
        role = CHANNEL
        if n > 1 and varies[d]:
            first = labels.narrow(d, 0, 1)
            role = BATCH if input.layout.sequences > 1 and bool((labels % tokens == first % tokens).all()) else TOKEN
        dims.append(fresh(n, role))
    layout = arranged(dims)
    rows = layout.to_rows(labels)
    copies = layout.channels / input.layout.channels
    if bool((rows == rows[:, :1]).all()):
        op = Gather(rows[:, 0].long(), copies, layout.channels)
        if routing is None:
            return capture.field_of(op, input, layout, call)
        made = capture.field_of(op, input, layout, call, doubts=(COMPARED,) if _compared(input, routing) else ())
        if layout.positions <= input.layout.positions:
            more = capture.picked_on_average(routing, layout.positions)
            capture.graph.routed[made.node] = (input.layout.positions, more)
        return made
    make = lambda _: capture.apply(PositionsToChannels(rows.unique(dim=1).long(), layout.channels), input.node)  # noqa: E731
    return Field(layout, make, sources=input.sources, call=call, inputs=(input,))


def _pairs(capture: Capture, call: Call, item: Field) -> Field | None:
    """Entries picked by position and by channel or key at once, as those below the diagonal of products of all pairs:
    channels, and drawn, since each may have a distribution of its own. None where no dimension runs along both."""
    if not any(isinstance(part, Tensor) for part in call.given) or len(result_shape(call)) >= len(item.shape):
        return None
    numbers = call.on(torch.arange(math.prod(item.shape), dtype=torch.float64).reshape(item.shape), item).long()
    dims: list[Dim] = []
    mixed = False
    for d, n in enumerate(numbers.shape):
        places = torch.unravel_index(numbers, item.shape)
        moves = [bool((place != place.narrow(d, 0, 1)).any()) for place in places]
        own = [dim for dim, moved in zip(item.layout.dims, moves, strict=True) if moved]
        dims.append(own[0] if len(own) == 1 and size(own[0]) == n else fresh(n, CHANNEL))
        mixed = mixed or len({axis.is_position for dim in own for axis in dim}) > 1
    return capture.drawn_field(arranged(dims), call, (item,), "pairs picked from products") if mixed else None


def _compared(item: Field, choice: Field) -> bool:
    """Whether a choice was made by these numbers or functions of them: what weights lie behind does not count."""
    waiting: list[Record] = [choice]
    seen: set[Record] = set()
    while waiting:
        record = waiting.pop()
        if record is item:
            return True
        if record not in seen and record.call is not None:
            seen.add(record)
            waiting += [] if any(isinstance(found, Weight) for found in record.call.records) else record.call.records
    return False


def reshaped(capture: Capture, call: Call, input: Field, shape: tuple[int, ...]) -> Field:
    """The numbers in another shape: a view where its dimensions keep their roles."""
    try:
        return viewed(input, input.layout.reshaped(shape), call)
    except Misaligned:
        return moved(capture, call, input)


# -- Rules


@rule(*SAME, "as_subclass", "positive", "nan_to_num", "checkpoint_name")
def same(capture: Capture, call: Call, input: Record, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, torch.dtype) and not a.is_floating_point for a in (*args, *kwargs.values())):
        return call.function(capture.value_of(input), *args, **kwargs)
    if isinstance(input, Tensor):
        made = (
            input.to(args[0].dtype) if args and isinstance(args[0], Record) else call.function(input, *args, **kwargs)
        )
        if isinstance(chosen := how_chosen(input), Field):
            remember_choice(made, kept(capture, replace(call, args=(chosen, *args))))
        return made
    return input


@rule("view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "ravel")
def reshape(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], torch.dtype):
        return input
    if isinstance(input, Tensor):
        return input.reshape(result_shape(call))
    return reshaped(capture, call, input, result_shape(call))


@rule("transpose", "swapaxes", "swapdims", "t", "adjoint")
def transpose(capture: Capture, call: Call, input: Field, dim0: int = 0, dim1: int = 1) -> Field:
    order = list(range(len(input.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return viewed(input, input.layout.permuted(order), call)


@rule("permute")
def permute(capture: Capture, call: Call, input: Field, *dims: Any, **kwargs: Any) -> Field:
    given = kwargs.get("dims", dims)
    order = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    return viewed(input, input.layout.permuted([place % len(input.shape) for place in order]), call)


@rule("movedim", "moveaxis")
def movedim(capture: Capture, call: Call, input: Field, source: Any, destination: Any) -> Field:
    rank = len(input.shape)
    places = torch.empty([n + 2 for n in range(rank)], device="meta")
    moved = torch.movedim(places, source, destination)
    return viewed(input, input.layout.permuted([n - 2 for n in moved.shape]), call)


@rule("unsqueeze")
def unsqueeze(capture: Capture, call: Call, input: Field, dim: int) -> Field:
    return viewed(input, input.layout.inserted(dim % (len(input.shape) + 1)), call)


@rule("squeeze")
def squeeze(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Field:
    return reshaped(capture, call, input, result_shape(call))


@rule("view_as_complex")
def view_as_complex(capture: Capture, call: Call, input: Field) -> Field:
    """Pairs of channels become complex numbers: followed by replay."""
    layout, transparent = Layout(input.layout.dims[:-1], input.layout.order), input.transparent or input.is_source
    made = Field(layout, no_state, input.sources, transparent=transparent, call=call, inputs=(input,))
    made.dtype = torch.complex64
    return made


@rule("view_as_real")
def view_as_real(capture: Capture, call: Call, input: Field) -> Field:
    dims = (*input.layout.dims, (Axis(2, CHANNEL),))
    return capture.drawn_field(Layout(dims, input.layout.order), call, (input,), "complex rotation sampled")


@rule("real", "imag")
def part_of_complex(capture: Capture, call: Call, input: Field) -> Field:
    if not input.dtype.is_complex:
        return input
    return capture.drawn_field(input.layout, call, (input,), f"{call.name} part sampled")


@rule("expand", "expand_as", "broadcast_to")
def expand(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    shape = result_shape(call)
    if isinstance(input, Tensor):
        return input.expand(shape)
    if isinstance(input, Weight):
        return of_weights(capture, Call(torch.Tensor.expand, "expand", (input, shape), {}, call.module))
    return expanded(capture, call, input, shape)


@rule("getitem")
def getitem(capture: Capture, call: Call, input: Any, index: Any) -> Any:
    if not isinstance(input, Field):
        return call.function(input, mapped(index, capture.value_of))
    items = list(index) if isinstance(index, tuple) else [index]
    items = [capture.value_of(item) for item in items]
    if any(isinstance(item, (Tensor, list)) for item in items):
        made = Call(call.function, call.name, (input, tuple(items)), {}, call.module)
        return moved(capture, made, input, routing_of(index))
    items = _without_ellipsis(items, len(input.shape))
    result, place = input, 0
    for item in items:
        if item is None:
            result = viewed(result, result.layout.inserted(place), call)
            place += 1
            continue
        size = result.shape[place]
        if isinstance(item, int):
            start = item % size
            result = sliced(capture, call, result, place, start, start + 1)
            result = viewed(result, _dropped(result.layout, place), call)
            continue
        start, stop, step = item.indices(size)
        if (start, stop, step) != (0, size, 1):
            result = sliced(capture, call, result, place, start, stop, step)
            if isinstance(result, Tensor):
                return torch.empty(result.shape)[(slice(None),) * (place + 1) + tuple(items[items.index(item) + 1 :])]
        place += 1
    if result is input:
        return viewed(input, input.layout, call)
    result.call, result.output = call, None
    return result


def _without_ellipsis(items: list, rank: int) -> list:
    if Ellipsis in items:
        place = items.index(Ellipsis)
        used = sum(item is not None for item in items) - 1
        items = items[:place] + [slice(None)] * (rank - used) + items[place + 1 :]
    return items


def _dropped(layout: Layout, place: int) -> Layout:
    return Layout(layout.dims[:place] + layout.dims[place + 1 :], layout.order)


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> tuple[Field, ...]:
    place = kwargs.get("dim", args[1] if len(args) > 1 else 0) % len(input.shape)
    found, start = [], 0
    for number, part in enumerate(on_meta(call)):
        stop = start + part.shape[place]
        found.append(taken(capture, call, input, place, start, stop, number))
        start = stop
    return tuple(found)


@rule("unbind", "iter")
def unbind(capture: Capture, call: Call, input: Field, dim: int = 0) -> tuple[Field, ...]:
    place = dim % len(input.shape)
    return tuple(taken(capture, call, input, place, n, None, n) for n in range(input.shape[place]))


@rule("narrow")
def narrow(capture: Capture, call: Call, input: Field, dim: int, start: int, length: int) -> Field:
    return taken(capture, call, input, dim % len(input.shape), int(start), int(start) + length)


def _chosen_entries(capture: Capture, call: Call, input: Field) -> Any:
    """Entries where an index that is chosen says: their places have the roles of those they are taken from."""
    shape = result_shape(call)
    if len(shape) != len(input.shape):
        return replayed(capture, call, "chosen entries")
    old = zip(input.layout.dims, input.shape, shape, strict=True)
    layout = arranged([dim if n == m else resized(dim, m) for dim, n, m in old], input.layout.order)
    return capture.drawn_field(layout, call, call.records, "chosen entries")


@rule("select")
def select(capture: Capture, call: Call, input: Field, dim: int, index: int) -> Field:
    place = dim % len(input.shape)
    return taken(capture, call, input, place, int(index) % input.shape[place])


@rule("repeat", "tile")
def repeat(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Copies of dimensions of size one are an expansion."""
    shape = result_shape(call)
    if isinstance(input, Field):
        old = (*[1] * (len(shape) - len(input.shape)), *input.shape)
        if all(n in (1, m) for n, m in zip(old, shape, strict=True)):
            return expanded(capture, call, input, shape)
    return rearranged(capture, call, input, *args, **kwargs)


@rule(
    "index_select",
    "roll",
    "flip",
    "repeat_interleave",
    "gather",
    "take_along_dim",
    "rot90",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
    "masked_select",
    "diagonal",
    "as_strided",
    "index",
)
def rearranged(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    chosen = any(isinstance(item, Field) for item in (*args, *kwargs.values()))
    if call.name in ("gather", "take_along_dim") and isinstance(input, Field) and chosen:
        return _chosen_entries(capture, call, input)
    routing = routing_of((args, kwargs))
    args, kwargs = mapped((args, kwargs), capture.value_of)
    if not isinstance(input, Field):
        return call.function(input, *args, **kwargs)
    return moved(capture, Call(call.function, call.name, (input, *args), kwargs, call.module), input, routing)
