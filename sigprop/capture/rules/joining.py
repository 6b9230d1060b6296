"""Tensors put together: concatenations, stacks, and writes by index (sums of a mixture of experts, caches, masks)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, by_rule, rule
from sigprop.capture.layout import (
    BATCH,
    CHANNEL,
    KEY,
    TOKEN,
    Axis,
    Layout,
    Misaligned,
    arranged,
    common_layout,
    fresh,
    positions_of,
)
from sigprop.capture.record import Call, Field, Record, Weight, independent, united
from sigprop.capture.rules.operands import as_field, weight_field
from sigprop.capture.rules.pointwise import have_in_common, side_by_side, summed
from sigprop.capture.rules.replayed import replayed
from sigprop.capture.rules.views import copied_like, expanded, viewed
from sigprop.compat import viewed_tensor
from sigprop.graph.graph import Node, record_of
from sigprop.theory.ops.cat import CatChannels
from sigprop.theory.ops.gather import Gather, Scatter
from sigprop.theory.ops.residual import Residual

STACKED = "tensors with common parts stacked as independent channels"


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
            dims.append(fresh(n, role))
        found.append(as_field(capture, item, arranged(dims)))
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
    dims = (*rest.dims[:place], fresh(total, role), *rest.dims[place + 1 :])
    layout = arranged(dims) if over_positions else Layout(dims, rest.order)
    make = (
        (lambda made: _one_after_another(capture, fields, place, made, rest))
        if over_positions
        else (lambda _: _side_by_side(capture, fields, place, layout, rest, own, stacked=not axes))
    )
    beside = place if axes and not over_positions else None
    return Field(layout, make, united(fields), beside=beside, call=call, inputs=tuple(fields))


def _joined_keys(capture: Capture, call: Call, fields: list[Field], place: int) -> Field:
    """Attention scores side by side, kept as a replay."""
    layout = max((item.layout for item in fields), key=lambda layout: layout.positions)
    keys = (Axis(sum(item.shape[place] for item in fields), KEY),)
    wide = _dropped_dim(layout, place)
    dims = (*wide.dims[:place], keys, *wide.dims[place + 1 :])
    return capture.drawn_field(Layout(dims, wide.order), call, fields, "scores side by side sampled")


def _dropped_dim(layout: Layout, place: int) -> Layout:
    """The layout with one dimension emptied; its positions leave the order."""
    gone = layout.dims[place]
    dims = (*layout.dims[:place], (), *layout.dims[place + 1 :])
    return Layout(dims, tuple(axis for axis in layout.order if axis not in gone))


def _side_by_side(
    capture: Capture,
    fields: list[Field],
    place: int,
    layout: Layout,
    rest: Layout,
    own: list[Layout],
    stacked: bool,
) -> Node:
    """Channels of several tensors in the positions of the result; what reads each of those along a new axis alike takes
    them as independent."""
    sizes, nodes = [item.shape[place] for item in fields], []
    for item, cut in zip(fields, own, strict=True):
        index = positions_of(rest, cut)
        straight = torch.equal(index, torch.arange(item.layout.positions))
        nodes.append(item.node if straight else capture.apply(Gather(index), item.node))
    whole = [item.node for item in fields]
    common = stacked and any(have_in_common(capture, one, two) for n, two in enumerate(whole) for one in whole[:n])
    op = CatChannels(tuple(n / sum(sizes) for n in sizes), layout.channels)
    return capture.apply(op, *nodes, doubts=(STACKED,) if common else ())


def _one_after_another(capture: Capture, fields: list[Field], place: int, result: Field, rest: Layout) -> Node:
    """Positions of several tensors, picked from what they have been picked from where that is one tensor."""

    def rows_of(item: Field) -> Tensor:
        rows, wide = item.layout.index(), list(rest.index().shape)
        wide[place] = rows.shape[place]
        return rows.expand(wide)

    origins = [_origin(capture, item.node) for item in fields]
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
        size += capture.states.positions(node)
    pieces = [rows_of(item) + starts[item.node] for item in fields]
    whole = distinct[0] if len(distinct) == 1 else side_by_side(capture, *distinct)
    return capture.apply(Gather(torch.cat(pieces, place).flatten()), whole)


def _origin(capture: Capture, node: Node) -> tuple[Node, Tensor]:
    """The tensor whose positions a node was picked from, and which they are."""
    taken = torch.arange(capture.states.positions(node))
    while isinstance(node.op, Gather) and node.op.copies == 1.0:
        taken, node = node.op.index[taken], node.inputs[0]
    return node, taken


# -- Writes into tensors by index


@rule("index_add")
def index_add(capture: Capture, call: Call, input: Any, dim: int, index: Tensor, source: Any, **kwargs: Any) -> Field:
    """`input[index] += source` along one dimension of positions."""
    place = dim % len(input.shape)
    if not isinstance(source, Field):
        return written(capture, call, input, [])
    layout = input.layout if isinstance(input, Field) else _grown(source.layout, place, input.shape[place])
    known = all(axis.is_position for axis in source.layout.dims[place]) and all(
        a.is_position for a in layout.dims[place]
    )
    base = input if isinstance(input, Field) else None
    if not known or (base is not None and not independent(base, source)):
        return written(capture, call, input, [source])
    rows = layout.index().index_select(place, capture.value_of(index))
    target = torch.empty(source.layout.positions, dtype=torch.long)
    target[source.layout.index().flatten()] = rows.flatten()
    node = capture.apply(Scatter(target, layout.positions), source.node)
    if base is not None:
        node = summed(capture, Residual(), base.node, node)
    inputs = (source,) if base is None else (base, source)
    return Field(layout, lambda _: node, call=call, inputs=inputs)


def _grown(layout: Layout, place: int, count: int) -> Layout:
    """The layout of a zero tensor that a field is added into along one dimension of positions."""
    dims = list(layout.dims)
    dims[place] = fresh(count, TOKEN)
    return arranged(dims)


@rule("setitem")
def setitem(capture: Capture, call: Call, input: Any, index: Any, value: Any) -> Any:
    """Kept as a replay: entries of `input` replaced by `value`."""
    if isinstance(value, Weight):
        value = weight_field(capture, value)
    fields = [item for item in (input, value) if isinstance(item, Field)]
    index = tuple(capture.value_of(item) for item in index) if isinstance(index, tuple) else capture.value_of(index)
    made = Call(_with_items, call.name, (input, index, value), {}, call.module)
    return written(capture, made, input, fields)


def _with_items(input: Tensor, index: Any, value: Any) -> Tensor:
    result = input.clone()
    result[index] = value
    return result


@rule(
    "scatter",
    "scatter_add",
    "index_copy",
    "index_put",
    "masked_scatter",
    "copy",
    "index_fill",
    "slice_scatter",
    "select_scatter",
    "scatter_reduce",
)
def write(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    if call.name == "copy":
        return _copied(capture, call, input, args[0])
    fields = [item for item in call.records if isinstance(item, Field)]
    return written(capture, call, input, fields)


def _copied(capture: Capture, call: Call, input: Any, source: Any) -> Any:
    if isinstance(source, Field):
        if source.shape == tuple(input.shape):
            return viewed(source, source.layout, Call(torch.clone, "clone", (source,), {}, call.module))
        wide = Call(torch.broadcast_to, "broadcast_to", (source, tuple(input.shape)), {}, call.module)
        return expanded(capture, wide, source, tuple(input.shape))
    return input


def written(capture: Capture, call: Call, input: Any, fields: list[Field]) -> Field:
    same = [item for item in fields if item.shape == tuple(input.shape)]
    if isinstance(input, Field):
        layout = input.layout
    elif same:
        layout = same[0].layout
    else:
        layout = _target_layout(tuple(input.shape), fields)
    made = [input] if isinstance(input, Field) and input not in fields else []
    return capture.drawn_field(layout, call, [*made, *fields], f"{call.name} sampled")


def _target_layout(shape: tuple[int, ...], fields: list[Field]) -> Layout:
    """Roles of a real tensor that a field is written into: trailing dimensions like the field's, others positions."""
    dims: list = [()] * len(shape)
    model = fields[0].layout if fields else None
    for back in range(1, len(shape) + 1):
        n = shape[-back]
        if n == 1:
            continue
        like = model.dims[-back] if model is not None and back <= len(model.dims) else ()
        whole = like and all(a.role == CHANNEL for a in like)
        role = CHANNEL if whole else BATCH if back == len(shape) and len(shape) > 2 else TOKEN
        dims[-back] = (Axis(n, role),)
    return arranged(dims)


# -- Writes through views: `key[..., :n].copy_(x)` must change `key`
#
# Traced tensors share no storage, so a view remembers the tensor it was taken from and how. When the view is written
# to, the tensor behind it gets a new record, in which the entries that the view covers are replaced.


_BEHIND = "_sigprop_behind"
_PARTS = "_sigprop_parts"


def remember(view: Tensor, behind: Tensor, call: Call, output: int | None) -> None:
    """Note that a tensor is a view of another."""
    setattr(view, _BEHIND, (behind, call, output))


def written_through(capture: Capture, view: Tensor, record: Record) -> None:
    """Give the tensor behind a view, if there is one, the record of the write."""
    found = _behind(capture, view)
    if found is None or not isinstance(record, Field):
        return
    behind, index = found
    before = record_of(behind)
    parts = _parts(capture, behind, before, index, record)
    made = _joined(capture, behind, parts)
    if made is None:
        target = before if before is not None else behind
        start = next((start for start, part in parts.items() if part is record), None)
        given = (_replace, index) if start is None else (_replace_range, start)  # an index of all entries is large
        call = Call(given[0], "setitem", (target, given[1], record), {}, capture.module)
        made = written(capture, call, before if before is not None else behind, _fields(before, record))
    setattr(behind, _PARTS, (made, parts))
    capture.attach(behind, made)
    written_through(capture, behind, made)


def _parts(capture: Capture, behind: Tensor, before: Record | None, index: Tensor, record: Field) -> dict[int, Field]:
    """What was written since the tensor was made, by where it starts in the last dimension; empty where a write covers
    anything but a range of it."""
    start, size = int(index[(0,) * index.dim()]) % behind.shape[-1], index.shape[-1]
    places = _places(capture, behind)
    if record.shape != tuple(index.shape) or not torch.equal(index, places[..., start : start + size]):
        return {}
    made, parts = getattr(behind, _PARTS, (None, {}))
    return {**parts, start: record} if made is before else {start: record} if before is None else {}


def _joined(capture: Capture, behind: Tensor, parts: dict[int, Field]) -> Field | None:
    """The parts side by side, where they make up the whole tensor."""
    ordered = [parts[start] for start in sorted(parts)]
    ends = [start + parts[start].shape[-1] for start in sorted(parts)]
    if len(ordered) < 2 or [0, *ends] != [*sorted(parts), behind.shape[-1]]:
        return None
    call = Call(torch.cat, "cat", (ordered, -1), {}, capture.module)
    try:
        return by_rule(capture, call)
    except Misaligned:
        return None


def _fields(*records: Record | None) -> list[Field]:
    return [item for item in records if isinstance(item, Field)]


def _places(capture: Capture, behind: Tensor) -> Tensor:
    """The number of each entry. Those of the last shape are kept: blocks write to large tensors of one shape."""
    if capture.places.shape != behind.shape:
        capture.places = torch.arange(math.prod(behind.shape)).reshape(behind.shape)
    return capture.places


def _behind(capture: Capture, view: Tensor) -> tuple[Tensor, Tensor] | None:
    """The tensor behind a view and the places of the view's entries in it."""
    if hasattr(view, _BEHIND):
        behind, call, output = getattr(view, _BEHIND)
        result = call.on(_places(capture, behind), call.args[0])
        return behind, result if output is None else result[output]
    base = viewed_tensor(view)
    if base is None or view.is_meta or not base.is_contiguous():
        return None
    places = _places(capture, base)
    return base, places.as_strided(view.size(), view.stride(), view.storage_offset() - base.storage_offset())


def _replace(input: Tensor, index: Tensor, value: Tensor) -> Tensor:
    flat = input.clone().reshape(-1)
    flat = flat.index_put((index.reshape(-1),), value.expand(index.shape).reshape(-1))
    return flat.reshape(input.shape)


def _replace_range(input: Tensor, start: int, value: Tensor) -> Tensor:
    """Along the last dimension."""
    return torch.cat((input[..., :start], value, input[..., start + value.shape[-1] :]), -1)
