"""Errors that speak to a person: where, what was needed, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


class UserCodeError(SigpropError, RuntimeError):
    """The user's own file raised; the message names its file and line."""


class NonFiniteError(SigpropError, ArithmeticError):
    """A watched run has met a value that is not finite, and was asked to stop there."""


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise one clear `InputError` naming the key, the value and what is allowed."""
    if not condition:
        raise InputError(f"{key} = {value!r} is not allowed: needs {allowed}")
