"""Comparisons, and choices that depend on them entry by entry.

A comparison gives real values, one draw, so that a model can branch on it. They remember what was compared: where they
choose between entries (`where`, `masked_fill`, a mask that multiplies) the choice is made anew on every drawn or
integrated value, so that `where(x > 0, x, 0)` is the activation that it spells out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.broadcast import as_constant
from sigprop.capture.capture import Capture
from sigprop.capture.fields.combined import fixed_factor
from sigprop.capture.fields.pointwise import function_of_one, pointwise
from sigprop.capture.fields.replayed import kept, replayed
from sigprop.capture.fields.values import condition_of, drawn_result, remember_condition
from sigprop.capture.record import Call, Field
from sigprop.capture.registry import rule
from sigprop.errors import UnsupportedError


@rule("gt", "lt", "ge", "le", "greater", "less")
def compared(capture: Capture, call: Call, input: Any, other: Any) -> Any:
    values = drawn_result(capture, call, input, other)
    remember_condition(values, _condition(capture, call, input, other))
    return values


def _condition(capture: Capture, call: Call, input: Any, other: Any) -> Field | None:
    number = as_constant(other, input)
    if isinstance(input, Field) and number is not None:
        return pointwise(capture, call, input, lambda x: call.function(x, number))
    shared = function_of_one(capture, call, (input, other))
    if shared is not None:
        return shared
    try:
        return kept(capture, call)
    except UnsupportedError:
        return None


@rule("where")
def where(capture: Capture, call: Call, condition: Any, *choices: Any, **kwargs: Any) -> Any:
    if not choices and not kwargs:
        return drawn_result(capture, call, condition)
    first, second = (*choices, *kwargs.values())
    if call.function is torch.Tensor.where:
        condition, first = first, condition
    return _chosen(capture, call, condition, first, second)


@rule("masked_fill")
def masked_fill(capture: Capture, call: Call, input: Any, mask: Any, value: Any) -> Any:
    return _chosen(capture, call, mask, value, input)


def _chosen(capture: Capture, call: Call, condition: Any, first: Any, second: Any) -> Any:
    """`condition ? first : second`."""
    chosen = condition_of(condition)
    made = Call(_where, "where", (chosen, first, second), {}, call.module)
    if isinstance(chosen, Field):
        shared = function_of_one(capture, made, (chosen, first, second))
        return shared if shared is not None else replayed(capture, made)
    mask = capture.value_of(chosen)
    for field, other, share in ((first, second, mask), (second, first, ~mask)):
        if isinstance(field, Field) and as_constant(other, field) == 0.0:
            return fixed_factor(capture, made, field, share.double())
    return replayed(capture, made)


def _where(condition: Tensor, first: Any, second: Any) -> Tensor:
    return torch.where(condition.bool(), first, second)
