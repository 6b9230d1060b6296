"""Slices, gathers, concatenations and other rearrangements of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.theory import Node, Status
from sigprop.theory.ops.cat_channels import CatChannels
from sigprop.theory.ops.gather import Gather
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.positions_to_channels import PositionsToChannels
from sigprop.trace.broadcast import common_layout, concrete_field, positions_of, weight_field
from sigprop.trace.layout import BATCH, CHANNEL, KEY, TOKEN, Axis, Layout
from sigprop.trace.record import Call, Field, Source, Weight, independent, mapped, united
from sigprop.trace.rules import rule
from sigprop.trace.rules.fallback import sample as replayed
from sigprop.trace.rules.values import CHOICE
from sigprop.trace.rules.views import copied_like, expand, on_meta, result_shape, viewed
from sigprop.trace.shared_weights import have_in_common, side_by_side

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture


# -- slices


@rule("getitem")
def getitem(capture: Capture, call: Call, input: Any, index: Any) -> Any:
    if not isinstance(input, Field):
        return call.function(input, mapped(index, capture.value_of))
    items = list(index) if isinstance(index, tuple) else [index]
    items = [capture.value_of(item) for item in items]
    if any(isinstance(item, (Tensor, list)) for item in items):
        return moved(capture, Call(call.function, call.name, (input, tuple(items)), {}, call.module), input)
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
    return _as_result_of(result, call, input)


def _as_result_of(result: Field, call: Call, input: Field) -> Field:
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


def _selector(place: int, keep: Tensor):
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


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> tuple[Field, ...]:
    parts = on_meta(call)
    place = kwargs.get("dim", args[1] if len(args) > 1 else 0) % len(input.shape)
    found, start = [], 0
    for number, part in enumerate(parts):
        stop = start + part.shape[place]
        piece = sliced(capture, call, input, place, start, stop, output=number)
        if isinstance(piece, Field):
            piece.call, piece.output = call, number
        found.append(piece)
        start = stop
    return tuple(found)


@rule("unbind", "iter")
def unbind(capture: Capture, call: Call, input: Field, dim: int = 0) -> tuple[Field, ...]:
    place, found = dim % len(input.shape), []
    for number in range(input.shape[place]):
        piece = sliced(capture, call, input, place, number, number + 1)
        piece = viewed(piece, _dropped(piece.layout, place), call)
        piece.output = number
        found.append(piece)
    return tuple(found)


@rule("narrow")
def narrow(capture: Capture, call: Call, input: Field, dim: int, start: int, length: int) -> Field:
    piece = sliced(capture, call, input, dim % len(input.shape), int(start), int(start) + length)
    return _as_result_of(piece, call, input)


@rule("select")
def select(capture: Capture, call: Call, input: Field, dim: int, index: int) -> Field:
    place = dim % len(input.shape)
    start = int(index) % input.shape[place]
    piece = sliced(capture, call, input, place, start, start + 1)
    return _as_result_of(viewed(piece, _dropped(piece.layout, place), call), call, input)


# -- any rearrangement, by following labels


@rule("repeat", "tile")
def repeat(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Copies of dimensions of size one are an expansion."""
    shape = result_shape(call)
    if isinstance(input, Field):
        old = (*[1] * (len(shape) - len(input.shape)), *input.shape)
        if all(n in (1, m) for n, m in zip(old, shape, strict=True)):
            return expand(capture, call, input, *args, **kwargs)
    return rearranged(capture, call, input, *args, **kwargs)


@rule(
    "index_select", "roll", "flip", "repeat_interleave", "gather", "take_along_dim", "rot90",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "masked_select", "diagonal", "as_strided", "index",
)  # fmt: skip
def rearranged(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    choices = [getattr(item, CHOICE, None) for item in (*args, *kwargs.values()) if isinstance(item, Tensor)]
    if call.name in ("gather", "take_along_dim") and isinstance(input, Field) and any(choices):
        args, kwargs = mapped((args, kwargs), lambda item: getattr(item, CHOICE, item))
        return replayed(capture, Call(call.function, call.name, (input, *args), kwargs, call.module), "chosen entries")
    args, kwargs = mapped((args, kwargs), capture.value_of)
    if not isinstance(input, Field):
        return call.function(input, *args, **kwargs)
    return moved(capture, Call(call.function, call.name, (input, *args), kwargs, call.module), input)


def moved(capture: Capture, call: Call, input: Field, shape: tuple[int, ...] | None = None) -> Field:
    """Run the function on the kernel row of every entry and see where each entry of the result comes from."""
    labels = _apply_to(call, input, input.layout.labels().double().contiguous()).long()
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


def _apply_to(call: Call, input: Field, labels: Tensor) -> Tensor:
    args, kwargs = mapped((call.args, call.kwargs), lambda item: labels if item is input else item)
    return call.function(*args, **kwargs)


# -- concatenation


@rule("cat", "concat", "concatenate")
def cat(capture: Capture, call: Call, tensors: Sequence[Any], dim: int = 0, **kwargs: Any) -> Field:
    dim = kwargs.get("axis", dim)
    tensors = [t for t in tensors if 0 not in t.shape]
    if len(tensors) == 1 and isinstance(tensors[0], Field):
        return tensors[0]
    if not any(isinstance(t, Field) for t in tensors):
        return replayed(capture, call)
    layouts = [item.layout for item in tensors if isinstance(item, Field)]
    tensors = [copied_like(capture, item, layouts) if isinstance(item, Field) else item for item in tensors]
    call = replace(call, args=(tensors, dim), kwargs={})
    fields = _as_fields(capture, tensors, dim % len(tensors[0].shape))
    return joined(capture, call, fields, dim % len(fields[0].shape))


@rule("stack", "hstack", "vstack")
def stack(capture: Capture, call: Call, tensors: Sequence[Any], dim: int = 0) -> Field:
    rank = len(tensors[0].shape) + 1
    place = dim % rank
    fields = _as_fields(capture, list(tensors), None)
    wide = [viewed(item, item.layout.inserted(place), call) for item in fields]
    return joined(capture, call, wide, place)


def _as_fields(capture: Capture, tensors: list, skip: int | None) -> list[Field]:
    """Weights and real tensors take the roles of the first traced operand, dimension by dimension."""
    model = next(t for t in tensors if isinstance(t, Field))
    found = []
    for item in tensors:
        if isinstance(item, Field):
            found.append(item)
            continue
        dims = []
        for place, n in enumerate(item.shape):
            like = model.layout.dims[place]
            role = like[0].role if like else (TOKEN if place == skip else CHANNEL)
            dims.append((Axis(n, role),) if n > 1 else ())
        layout = Layout(tuple(dims), tuple(a for d in dims for a in d if a.is_position))
        make: Any = weight_field if isinstance(item, Weight) else concrete_field
        made = make(capture, item, layout)
        found.append(made)
    return found


def joined(capture: Capture, call: Call, fields: list[Field], place: int) -> Field:
    axes = [axis for item in fields for axis in item.layout.dims[place]]
    if any(axis.role == KEY for axis in axes):
        return _joined_keys(capture, call, fields, place)
    if axes:
        over_positions = axes[0].is_position
    else:
        over_positions = not any(a.role == TOKEN for item in fields for a in item.layout.order)
    rest, own = common_layout([_dropped_dim(item.layout, place) for item in fields])
    total = sum(item.shape[place] for item in fields)
    role = (axes[0].role if axes else TOKEN) if over_positions else CHANNEL
    dims = (*rest.dims[:place], (Axis(total, role),) if total > 1 else (), *rest.dims[place + 1 :])
    make = _position_join if over_positions else _stack_join if not axes else _channel_join
    layout = Layout(dims, tuple(a for d in dims for a in d if a.is_position) if over_positions else rest.order)
    return Field(
        layout,
        make(capture, fields, place, layout, rest, own),
        sources=united(fields),
        call=call,
        inputs=tuple(fields),
    )


def _joined_keys(capture: Capture, call: Call, fields: list[Field], place: int) -> Field:
    """Attention scores side by side, kept as a replay."""
    layout = max((item.layout for item in fields), key=lambda layout: layout.positions)
    keys = (Axis(sum(item.shape[place] for item in fields), KEY),)
    wide = _dropped_dim(layout, place)
    dims = (*wide.dims[:place], keys, *wide.dims[place + 1 :])
    make = lambda made: capture.sampled(made, "scores side by side sampled")  # noqa: E731
    return Field(Layout(dims, wide.order), make, united(fields), call=call, inputs=tuple(fields))


def _dropped_dim(layout: Layout, place: int) -> Layout:
    """The layout with one dimension emptied; its positions leave the order."""
    gone = layout.dims[place]
    dims = (*layout.dims[:place], (), *layout.dims[place + 1 :])
    return Layout(dims, tuple(axis for axis in layout.order if axis not in gone))


def _channel_join(capture: Capture, fields: list[Field], place: int, layout: Layout, rest: Layout, own: list[Layout]):
    sizes = [item.shape[place] for item in fields]

    def make(_: Field) -> Node:
        nodes = []
        for item, cut in zip(fields, own, strict=True):
            index = positions_of(rest, cut)
            straight = torch.equal(index, torch.arange(item.layout.positions))
            nodes.append(item.node if straight else capture.apply(Gather(index), item.node))
        return capture.apply(CatChannels(tuple(n / sum(sizes) for n in sizes), layout.channels), *nodes)

    return make


def _stack_join(capture: Capture, fields: list[Field], place: int, layout: Layout, rest: Layout, own: list[Layout]):
    """Tensors along a new axis, which counts as channels: what reads each of them alike takes them as independent."""
    make = _channel_join(capture, fields, place, layout, rest, own)

    def stacked(result: Field) -> Node:
        node, nodes = make(result), [item.node for item in fields]
        if any(have_in_common(capture, one, other) for n, other in enumerate(nodes) for one in nodes[:n]):
            node.signal = node.signal.note(Status.ASSUMED, "tensors with common parts stacked as independent channels")
        return node

    return stacked


def _position_join(capture: Capture, fields: list[Field], place: int, layout: Layout, rest: Layout, own: list[Layout]):
    def rows_of(item: Field) -> Tensor:
        rows, wide = item.layout.index(), list(rest.index().shape)
        wide[place] = rows.shape[place]
        return rows.expand(wide)

    def make(result: Field) -> Node:
        origins = [_origin(item.node) for item in fields]
        if all(node is origins[0][0] for node, _ in origins):
            places = [taken[rows_of(item)] for item, (_, taken) in zip(fields, origins, strict=True)]
            return capture.apply(Gather(torch.cat(places, place).flatten()), origins[0][0])
        first = {item.node: item for item in reversed(fields)}
        distinct = list(dict.fromkeys(item.node for item in fields))
        for number, node in enumerate(distinct):
            if not all(independent(first[node], first[other]) for other in distinct[:number]):
                return capture.sampled(result, "functions of one tensor joined over tokens")
        starts, size = {}, 0
        for node in distinct:
            starts[node] = size
            size += len(node.signal.mean)
        pieces = [rows_of(item) + starts[item.node] for item in fields]
        whole = distinct[0] if len(distinct) == 1 else side_by_side(capture, *distinct)
        return capture.apply(Gather(torch.cat(pieces, place).flatten()), whole)

    return make


def _origin(node: Node) -> tuple[Node, Tensor]:
    """The tensor whose positions a node was picked from, and which they are."""
    taken = torch.arange(len(node.signal.mean))
    while isinstance(node.op, Gather) and node.op.copies == 1.0:
        taken, node = node.op.index[taken], node.inputs[0]
    return node, taken
