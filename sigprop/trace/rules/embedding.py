"""Lookups: rows of a parameter chosen by real ids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from sigprop.errors import InputError
from sigprop.theory import Node
from sigprop.theory.ops.parameter_source import ParameterSource
from sigprop.trace.layout import BATCH, CHANNEL, TOKEN, of_roles
from sigprop.trace.record import Call, Field, Weight
from sigprop.trace.rules import rule

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

MANY = 2048


@rule("embedding")
def embedding(capture: Capture, call: Call, input: Any, weight: Weight, *args: Any, **kwargs: Any) -> Field:
    """Two positions share a vector exactly when their ids are equal."""
    ids = capture.value_of(input)
    _require_rows(call, ids, weight)
    front = [BATCH] * (ids.dim() > 1) + [TOKEN] * (ids.dim() - (ids.dim() > 1))
    layout = of_roles((*ids.shape, weight.shape[-1]), [*front, CHANNEL])
    call.args, call.kwargs = (ids, weight, *args), kwargs

    def make(_: Field) -> Node:
        flat = ids.flatten()
        law = weight.distribution
        same = (flat[:, None] == flat).double()
        op = ParameterSource(law.variance, law.mean, same, weight.shape, layout.channels)
        node = capture.apply(op, weights={"weight": (weight, math.prod(weight.shape))})
        for name, _share in weight.roots():
            capture.embedded[node] = (name, flat)
        return node

    if ids.numel() > MANY:  # tables over pairs of tokens (relative positions): replayed from the weight
        return Field(layout, make, sources=(), call=call, inputs=(weight,))
    return Field(layout, make, call=call, inputs=(weight,))


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
