"""Operands as fields of the network: weights and their rows, real numbers, fields read in the positions of a result."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import RULES, Capture, by_rule, rule
from sigprop.capture.layout import (
    BATCH,
    CHANNEL,
    TOKEN,
    Dim,
    Layout,
    concrete_kernel,
    concrete_rows,
    leading_positions,
    of_roles,
    positions_of,
)
from sigprop.capture.noise import NOISE
from sigprop.capture.record import Call, Field, Record, Weight, leaves, mapped
from sigprop.errors import InputError
from sigprop.graph.graph import Node
from sigprop.theory import Dense, Signal
from sigprop.theory.ops.gather import Gather
from sigprop.theory.ops.sources import GivenSignal, Lookup, ParameterSource
from sigprop.theory.states import GIVEN, Common

TOGETHER = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_CHOICE, _ROUTED = "_sigprop_choice", "_sigprop_routed"


def drawn_result(capture: Capture, call: Call, *args: Any, **kwargs: Any) -> Any:
    """What a function gives for one draw of its arguments."""
    args, kwargs = mapped((args, kwargs), capture.value_of)
    result = call.function(*args, **kwargs)
    return mapped(result, lambda item: item.detach() if isinstance(item, Tensor) else item)


def remember_choice(values: Any, choice: Any) -> None:
    """Let real numbers, or several, know how they were drawn (which entries are largest, what was compared), so that
    what is made with them is drawn with them again."""
    if not isinstance(values, Tensor):
        for item, made in zip(values, choice, strict=True):
            remember_choice(item, made)
        return
    setattr(values, _CHOICE, choice)
    setattr(values, _ROUTED, choice)


def remember_routing(values: Any, choice: Field) -> None:
    """The same where it cannot be drawn again: how many there are depends on it."""
    for item in leaves(values):
        if isinstance(item, Tensor):
            setattr(item, _ROUTED, choice)


def routing_of(index: Any) -> Field | None:
    """The choice by which an index was made, None where it is fixed."""
    return next((found for item in leaves(index) if (found := getattr(item, _ROUTED, None)) is not None), None)


def how_chosen(item: Any) -> Any:
    """How real numbers were drawn; the item itself where nothing is known of that."""
    found = getattr(item, _CHOICE, None) if isinstance(item, Tensor) else None
    return item if found is None else found


def as_field(capture: Capture, item: Any, layout: Layout | None = None) -> Field:
    """A field as it is; a weight or real numbers with a layout, by default the one that an input has."""
    if isinstance(item, Field):
        return item
    return weight_field(capture, item, layout) if isinstance(item, Weight) else concrete_field(capture, item, layout)


def weight_field(capture: Capture, weight: Weight, layout: Layout | None = None) -> Field:
    """A weight as a tensor of the network, with its own layout or one broadcast from another operand."""
    own = leading_positions(weight.shape)
    layout = own if layout is None else layout
    if _is_joined(weight) and [_counts(dim) for dim in layout.dims] == [_counts(dim) for dim in own.dims]:
        return _of_parts(capture, weight)
    distribution = weight.distribution
    gram = Dense(weight_sharing(weight, layout))
    op = ParameterSource(gram, distribution.variance, weight.shape, layout.channels, distribution.mean)

    def make(_: Field) -> Node:
        return capture.apply(op, weights=bound_to(weight=weight))

    return Field(layout, make, call=weight.call, inputs=(weight,))


def _counts(dim: Dim) -> list[bool]:
    return [axis.is_position for axis in dim][:1]


def _of_parts(capture: Capture, weight: Weight) -> Field:
    """A weight that several were put together to, as tensors that are: positions of one receive what reaches these."""
    call = weight.call
    if call is None or not _is_joined(weight):
        return weight_field(capture, weight)
    args, kwargs = mapped(
        (call.args, call.kwargs), lambda item: _of_parts(capture, item) if isinstance(item, Weight) else item
    )
    made = by_rule(capture, Call(call.function, call.name, args, kwargs, call.module))
    return made if weight.output is None else made[weight.output]


def concrete_field(capture: Capture, value: Tensor, layout: Layout | None = None) -> Field:
    """Real numbers (pixels, features) as a tensor of the network."""
    layout = leading_positions(value.shape) if layout is None else layout
    if getattr(value, NOISE, None) is not None:
        kernel, mean = concrete_kernel(value, layout)
        noise = GivenSignal(Signal(Dense(kernel), mean, layout.channels))
        return Field(layout, lambda _: capture.apply(noise))
    node = _given(capture, concrete_rows(value, layout), *concrete_kernel(value, layout))
    return Field(layout, lambda _: node)


def _given(capture: Capture, rows: Tensor, kernel: Tensor, mean: Tensor) -> Node:
    signal = Signal(Dense(kernel), mean, rows.shape[1], GIVEN, Common(uniform=0.0))
    return capture.apply(GivenSignal(signal, rows))


def relate_given(capture: Capture, first: Node, second: Node) -> None:
    """Let given numbers that are parts of two tensors be positions of one table: it knows what they have in common."""
    parts = capture.states.shared_parts
    sides = [[item for item in parts.ends(node) if isinstance(item.op, GivenSignal)] for node in (first, second)]
    nodes = list(dict.fromkeys(sides[0] + sides[1]))
    tables = [item.op.numbers for item in nodes if isinstance(item.op, GivenSignal)]
    if not all(sides) or len(nodes) == 1 or len({None if rows is None else rows.shape[1] for rows in tables}) > 1:
        return
    rows = torch.cat([item for item in tables if item is not None])
    table, start = _given(capture, rows, rows @ rows.T / rows.shape[1], rows.mean(1)), 0
    for node in nodes:
        stop = start + capture.states.positions(node)
        parts.take_from(node, table, torch.arange(start, stop))
        start = stop


def bound_to(uses: int = 1, **weights: Weight | None) -> dict[str, tuple[Weight, int]]:
    """Weights by the parameters of an op that they are, each with its number of entries; left out where there is none.

    `uses`: times that each entry is used.
    """
    return {name: (item, math.prod(item.shape) * uses) for name, item in weights.items() if item is not None}


def aligned(capture: Capture, item: Field, result: Layout, own: Layout) -> Node:
    """The node of a field, read in the positions of a result it is broadcast to."""
    index = positions_of(result, own)
    copies = result.channels / own.channels
    if copies == 1.0 and torch.equal(index, torch.arange(own.positions)):
        return item.node
    return capture.apply(Gather(index, copies, result.channels), item.node)


PARTS = 16
"""Channels that tell how a weight that was put together of several is shared by positions."""
Labels = list[tuple[float, Tensor]]
"""Of each weight that another is the sum of the share of the variance, and which of its entries each entry is."""


def weight_sharing(weight: Weight, layout: Layout) -> Tensor:
    """`same[p,p']`: the share of variance and channels in which positions of a layout read one entry of a weight that
    is broadcast to it."""
    labels = entry_labels(weight) or [(1.0, torch.arange(math.prod(weight.shape)).reshape(weight.shape))]
    parts, made = PARTS if _is_joined(weight) else 1, torch.zeros((), dtype=torch.float64)
    for share, item in labels:
        rows = layout.to_rows(item.expand(layout.shape)).T
        rows = rows[:: math.ceil(len(rows) / parts)]
        for row in rows:
            made = made + (row[:, None] == row).double() * (share / len(rows))
    return made


def _is_joined(weight: Weight) -> bool:
    """Whether its channels come from several weights, by functions that have rules."""
    call = weight.call
    if call is None or call.name not in RULES:
        return False
    return call.name in (*TOGETHER, "pad") or any(
        isinstance(item, Weight) and _is_joined(item) for item in call.records
    )


def entry_labels(weight: Weight) -> Labels:
    """Nothing where a weight is no rearrangement and no sum of parameters."""
    call = weight.call
    if call is None:
        return [(1.0, torch.arange(math.prod(weight.shape)).reshape(weight.shape))]
    parents = list(dict.fromkeys(item for item in call.records if isinstance(item, Weight)))
    found = [entry_labels(item) for item in parents]
    if len(parents) > 1 and call.name in ("add", "sub") and _are_apart(parents):
        total = sum(item.distribution.variance for item in parents) or 1.0
        shares = [item.distribution.variance / total for item in parents]
        return [
            (n * share, item.expand(weight.shape)) for n, own in zip(shares, found, strict=True) for share, item in own
        ]
    if any(len(own) != 1 for own in found) if len(parents) > 1 else not parents:
        return []
    if len(parents) > 1:
        return [(1.0, _together(call, parents, [own[0][1] for own in found]))] if call.name in TOGETHER else []
    if _is_pointwise(call) and all(item.shape == torch.Size(weight.shape) for _, item in found[0]):
        return found[0]
    try:
        made = [(share, call.on(item, parents[0])) for share, item in found[0]]
    except (RuntimeError, TypeError, IndexError, ValueError):
        return []
    return made if weight.output is None else [(share, item[weight.output]) for share, item in made]


def _are_apart(weights: list[Weight]) -> bool:
    roots = [name for item in weights for name, _ in item.roots]
    return len(roots) == len(set(roots))


def _together(call: Call, parents: list[Weight], labels: list[Tensor]) -> Tensor:
    """Labels of several weights put together, each with numbers of its own."""
    found, start = {}, 0
    for parent, item in zip(parents, labels, strict=True):
        found[parent], start = item + start, start + int(item.max()) + 1
    args, kwargs = mapped((call.args, call.kwargs), lambda item: found[item] if isinstance(item, Weight) else item)
    return call.function(*args, **kwargs)


def _is_pointwise(call: Call) -> bool:
    return call.name in ("add", "mul", "sub", "div", "neg", "exp", "sigmoid", "to", "float", "tanh", "softplus", "pow")


# -- Lookups: rows of a parameter chosen by real ids


MANY = 2048


@rule("embedding")
def embedding(
    capture: Capture, call: Call, input: Any, weight: Weight, padding_idx: int | None = None, *args: Any, **kwargs: Any
) -> Field:
    """Two positions share a vector exactly when their ids are equal, in this lookup and in others of the table. Rows
    that are picked by what they are, as the nearest ones, are drawn."""
    ids = capture.value_of(input)
    _require_rows(call, ids, weight)
    front = [BATCH] * (ids.dim() > 1) + [TOKEN] * (ids.dim() - (ids.dim() > 1))
    layout = of_roles((*ids.shape, weight.shape[-1]), [*front, CHANNEL])
    choice = how_chosen(input)
    if isinstance(choice, Field) and picks_rows(choice, weight):
        call = replace(call, args=(choice, *call.args[1:]))
        return capture.drawn_field(layout, call, (choice, weight), "rows of a table picked by what they are")
    call.args, call.kwargs = (ids, weight, padding_idx, *args), kwargs

    def make(_: Field) -> Node:
        flat = ids.flatten()
        node = _read(capture, weight, flat, padding_idx)
        names = [name for name, _ in weight.roots]
        lookups = capture.graph.lookups
        before = [other for other, (name, _) in lookups.items() if [name] == names]
        for name in names:
            lookups[node] = (name, flat)
        if before and weight.call is None:
            _relate(capture, weight, [*before, node], padding_idx)
        return node

    if ids.numel() > MANY:  # tables over pairs of tokens (relative positions): replayed from the weight
        return Field(layout, make, sources=(), call=call, inputs=(weight,))
    return Field(layout, make, call=call, inputs=(weight,))


def rows_picked(call: Call) -> Call | None:
    """A lookup in place of `table[ids]` whose ids were picked by what the rows are."""
    if not isinstance(call.args[0], Weight):
        return None
    weight, ids = call.args[0], call.args[-1]
    choice = how_chosen(ids)
    if not isinstance(choice, Field) or ids.dtype == torch.bool or not picks_rows(choice, weight):
        return None
    return Call(torch.nn.functional.embedding, "embedding", (ids, weight), {}, call.module)


def picks_rows(item: Field, weight: Weight) -> bool:
    """Whether a tensor is made of whole numbers that are chosen by entries of a weight."""
    waiting: list[tuple[Record, bool]] = [(item, False)]
    seen = set[tuple[Record, bool]]()
    while waiting:
        record, chosen = found = waiting.pop()
        if chosen and isinstance(record, Weight) and not {*record.entries}.isdisjoint(weight.entries):
            return True
        chosen = chosen or not record.dtype.is_floating_point
        if found not in seen and record.call is not None:
            source = getattr(record, "is_source", False)
            above = record.call.records if not source else record.weights if chosen else ()  # type: ignore[attr-defined]
            waiting += [(item, chosen) for item in above]
        seen.add(found)
    return False


def _read(capture: Capture, weight: Weight, ids: Tensor, padding_idx: int | None) -> Node:
    """The rows of a table at some ids."""
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    op = Lookup.of(ids, weight.shape, weight.distribution, weight.zero_rows, padding)
    return capture.apply(op, weights=bound_to(weight=weight))


def _relate(capture: Capture, weight: Weight, lookups: list[Node], padding_idx: int | None) -> None:
    """Let all lookups of one table be parts of it: what they have in common adds as one, and so do their gradients."""
    read = [capture.graph.lookups[node][1] for node in lookups]
    rows = torch.cat(read).unique()
    table = _read(capture, weight, rows, padding_idx)
    for node, ids in zip(lookups, read, strict=True):
        capture.states.shared_parts.take_from(node, table, torch.searchsorted(rows, ids))


def _require_rows(call: Call, ids: torch.Tensor, weight: Weight) -> None:
    """Ids must name rows of the table."""
    low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
    if low < 0 or high >= weight.shape[0]:
        raise InputError(
            f"the embedding in {call.module!r} has {weight.shape[0]} rows, and ids go from {low} to {high}: "
            f"needs ids from 0 to {weight.shape[0] - 1}"
        )


@rule("one_hot")
def one_hot(capture: Capture, call: Call, input: Any, num_classes: int = -1) -> torch.Tensor:
    return torch.nn.functional.one_hot(capture.value_of(input), num_classes)
