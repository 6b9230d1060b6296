"""Lookups: rows of a parameter chosen by real ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, of_roles
from sigprop.capture.record import Call, Field, Weight
from sigprop.capture.rules.operands import bound_to
from sigprop.errors import InputError
from sigprop.graph.graph import Node
from sigprop.theory.ops.sources import Lookup

MANY = 2048


@rule("embedding")
def embedding(
    capture: Capture, call: Call, input: Any, weight: Weight, padding_idx: int | None = None, *args: Any, **kwargs: Any
) -> Field:
    """Two positions share a vector exactly when their ids are equal, in this lookup and in others of the table."""
    ids = capture.value_of(input)
    _require_rows(call, ids, weight)
    front = [BATCH] * (ids.dim() > 1) + [TOKEN] * (ids.dim() - (ids.dim() > 1))
    layout = of_roles((*ids.shape, weight.shape[-1]), [*front, CHANNEL])
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


def _read(capture: Capture, weight: Weight, ids: Tensor, padding_idx: int | None) -> Node:
    """The rows of a table at some ids."""
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    op = Lookup.of(ids, weight.shape, weight.distribution, weight.zero_rows, padding)
    return capture.apply(op, weights=bound_to(weight=weight))


def _relate(capture: Capture, weight: Weight, lookups: list[Node], padding_idx: int | None) -> None:
    """Let all lookups of one table be parts of it, so that their sums add in step, and so do their gradients."""
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
