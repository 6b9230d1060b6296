"""Errors that speak to a person: where, what was needed, what came, what to do."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


class SigpropError(Exception):
    """Base of every error that sigprop raises on purpose."""


class InputError(SigpropError, ValueError):
    """A value given by the user is not allowed."""


class UnknownNameError(SigpropError, KeyError):
    """A name matches nothing that is registered or present."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = ""):
        known = sorted(known)
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:8]
        message = f"unknown {kind} {name!r}; nearest: {', '.join(nearest) or 'none'}"
        super().__init__(f"{message}. {hint}" if hint else message)

    def __str__(self) -> str:
        return self.args[0]


class UnsupportedError(SigpropError, NotImplementedError):
    """The model or setting is outside what the method covers."""


class NoRule(UnsupportedError):
    """A torch function that the theory has no rule for, or whose rule does not cover its arguments."""


class TooLarge(UnsupportedError):
    """More positions, numbers or calls than are tracked."""


class Fault(SigpropError, RuntimeError):
    """sigprop itself went wrong: nothing follows for the model. `predict` says so and simulates instead; where the
    environment sets SIGPROP_RAISE_FAULTS, as tests and studies do, it is raised."""


class FaultWarning(UserWarning):
    """A fault of sigprop, around which it went."""


def faults_are_raised() -> bool:
    return os.environ.get("SIGPROP_RAISE_FAULTS", "") not in ("", "0")


class WriteError(SigpropError, OSError):
    """A file cannot be written: no right, no folder, no space. What was there before is still there."""


class UserCodeError(SigpropError, RuntimeError):
    """The user's own file raised; the message names its file and line."""


class NonFiniteError(SigpropError, ArithmeticError):
    """A watched run has met a value that is not finite, and was asked to stop there."""


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise one clear `InputError` naming the key, the value and what is allowed."""
    if not condition:
        raise InputError(f"{key} = {value!r} is not allowed: needs {allowed}")


def require_names(known: Iterable[str], given: Iterable[str], kind: str) -> None:
    """Raise for the first name that is not known."""
    known = list(known)
    for name in given:
        if name not in known:
            raise UnknownNameError(kind, name, known)


LARGEST = 2**31 - 1
MAY_BE_ZERO = ("depth", "key_value_heads", "seed")
WORDS = {int: "a whole number", float: "a finite number", str: "a name", bool: "true or false"}


def require_settings(kind: type, settings: Mapping[str, Any], owner: str) -> None:
    """Raise for settings that a dataclass has no field for, or whose value is of another type than the field's."""
    hints = get_type_hints(kind)
    require_names([item.name for item in fields(kind)], settings, f"setting of {owner}")
    for key, value in settings.items():
        wanted = hints[key]
        types = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
        needed = " or ".join(WORDS[item] for item in types if item in WORDS)
        require(not needed or any(_is_of(value, item) for item in types), key, value, needed)
        if int in types and isinstance(value, int):
            require(int(key not in MAY_BE_ZERO) <= value <= LARGEST, key, value, f"a size, at most {LARGEST}")


def _is_of(value: Any, wanted: Any) -> bool:
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if wanted is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
    if get_origin(wanted) is Sequence:
        return isinstance(value, (list, tuple)) and all(_is_of(item, get_args(wanted)[0]) for item in value)
    return isinstance(value, get_origin(wanted) or wanted)
