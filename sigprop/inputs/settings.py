"""`--set key=value` on the command line."""

from __future__ import annotations

import ast
from typing import Any

from sigprop.errors import InputError


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`["depth=48", "dropout=0.1", "kind=decoder"]` to typed values; a bare word is text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key or not text:
            raise InputError(f"--set {pair!r} is not allowed: needs key=value, for example --set depth=48")
        if key in settings:
            raise InputError(f"--set {key} is given twice")
        settings[key] = _value(text)
    return settings


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("nan", "inf", "-inf"):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
