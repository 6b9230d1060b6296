"""Rules: one file per family, each binding torch functions to ops by name.

A rule is called as `rule(capture, call, *args, **kwargs)` with the function's own arguments, traced tensors replaced by
their records, and returns the record of the result (or a tuple, or real values).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from sigprop.errors import InputError

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}
_LOADED = False


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
    _load()
    return _RULES.get(name)


def rule_names() -> list[str]:
    """All torch functions that have a rule."""
    _load()
    return sorted(_RULES)


def _load() -> None:
    global _LOADED
    if not _LOADED:
        _LOADED = True
        for module in iter_modules(__path__):
            import_module(f"{__name__}.{module.name}")
