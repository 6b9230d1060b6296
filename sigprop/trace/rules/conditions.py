"""Comparisons, and choices that depend on them entry by entry.

A comparison gives real values, one draw, so that a model can branch on it. They remember what was compared: where they
choose between entries (`where`, `masked_fill`, a mask that multiplies) the choice is made anew on every drawn or
integrated value, so that `where(x > 0, x, 0)` is the activation that it spells out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.errors import UnsupportedError
from sigprop.trace.broadcast import as_constant
from sigprop.trace.record import Call, Field
from sigprop.trace.rules import rule
from sigprop.trace.rules.elementwise import fixed_factor, function_of_one, pointwise, replayed
from sigprop.trace.rules.fallback import kept
from sigprop.trace.rules.values import real

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

_CONDITION = "_sigprop_condition"


@rule("gt", "lt", "ge", "le", "greater", "less")
def compared(capture: Capture, call: Call, input: Any, other: Any) -> Any:
    values = real(capture, call, input, other)
    setattr(values, _CONDITION, _condition(capture, call, input, other))
    return values


def _condition(capture: Capture, call: Call, input: Any, other: Any) -> Field | None:
    number = as_constant(other)
    if isinstance(input, Field) and number is not None:
        return pointwise(capture, call, input, lambda x: call.function(x, number))
    shared = function_of_one(capture, call, (input, other))
    if shared is not None:
        return shared
    try:
        return kept(capture, call)
    except UnsupportedError:
        return None


def condition_of(item: Any) -> Any:
    """What was compared to give these values; the item itself where nothing is known of that."""
    found = getattr(item, _CONDITION, None) if isinstance(item, Tensor) else None
    return item if found is None else found


@rule("where")
def where(capture: Capture, call: Call, condition: Any, *choices: Any, **kwargs: Any) -> Any:
    if not choices and not kwargs:
        return real(capture, call, condition)
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
        if isinstance(field, Field) and as_constant(other) == 0.0:
            return fixed_factor(capture, made, field, share.double())
    return replayed(capture, made)


def _where(condition: Tensor, first: Any, second: Any) -> Tensor:
    return torch.where(condition.bool(), first, second)
