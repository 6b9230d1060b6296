"""Real numbers in place of a traced tensor: one draw, which may remember what it was drawn from."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.record import Call, Field, mapped

_CHOICE = "_sigprop_choice"
_CONDITION = "_sigprop_condition"


def drawn_result(capture: Capture, call: Call, *args: Any, **kwargs: Any) -> Any:
    """What a function gives for one draw of its arguments."""
    args, kwargs = mapped((args, kwargs), capture.value_of)
    result = call.function(*args, **kwargs)
    return mapped(result, lambda item: item.detach() if isinstance(item, Tensor) else item)


def remember_choice(indices: Tensor, choice: Field) -> None:
    """Let real indices know how they were chosen, so that entries gathered by them are the chosen ones again."""
    setattr(indices, _CHOICE, choice)


def choice_of(item: Any) -> Any:
    """How indices were chosen; the item itself where nothing is known of that."""
    return _remembered(item, _CHOICE)


def remember_condition(values: Any, condition: Field | None) -> None:
    """Let the values of a comparison know what was compared."""
    setattr(values, _CONDITION, condition)


def condition_of(item: Any) -> Any:
    """What was compared to give these values; the item itself where nothing is known of that."""
    return _remembered(item, _CONDITION)


def _remembered(item: Any, key: str) -> Any:
    found = getattr(item, key, None) if isinstance(item, Tensor) else None
    return item if found is None else found
