"""Concatenations and stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.layout import CHANNEL, KEY, TOKEN, Axis, Layout, arranged, common_layout, fresh, positions_of
from sigprop.capture.record import Call, Field, independent, united
from sigprop.capture.rules.operands import as_field
from sigprop.capture.rules.pointwise import have_in_common, side_by_side
from sigprop.capture.rules.replayed import replayed
from sigprop.capture.rules.views import copied_like, viewed
from sigprop.graph.graph import Node
from sigprop.theory.ops.cat import CatChannels
from sigprop.theory.ops.gather import Gather

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
