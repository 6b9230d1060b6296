"""Rules by the name of the torch function that they follow.

A rule is called as `rule(capture, call, *args, **kwargs)` with the function's own arguments, traced tensors replaced by
their records, and returns the record of the result (or a tuple, or real values).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sigprop.capture.capture import Capture
from sigprop.capture.record import Call, Field
from sigprop.errors import InputError

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: the rule of the torch functions with these names."""

    def add(function: Rule) -> Rule:
        for name in names:
            if name in _RULES:
                raise InputError(f"torch function {name!r} already has the rule {_RULES[name].__qualname__!r}")
            _RULES[name] = function
        return function

    return add


def find_rule(name: str) -> Rule | None:
    return _RULES.get(name)


def rule_names() -> list[str]:
    """All torch functions that have a rule."""
    return sorted(_RULES)


def by_rule(capture: Capture, call: Call) -> Any:
    """The result of a call that the model did not make itself, one of the steps that another call stands for."""
    made = _RULES[call.name](capture, call, *call.args, **call.kwargs)
    if isinstance(made, Field) and made.call is None:
        made.call = call
    return made
