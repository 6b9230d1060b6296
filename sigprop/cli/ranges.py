"""`a:b:n` on the command line."""

from __future__ import annotations

import math

from sigprop.errors import InputError, require


def parse_range(key: str, text: str) -> list[float]:
    """`0.5:3:40` to forty evenly spaced values from 0.5 to 3; a single number to itself."""
    parts = text.split(":")
    try:
        if len(parts) == 1:
            low = high = float(parts[0])
            count = 1
        else:
            low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
            if len(parts) > 3:
                raise ValueError
    except (ValueError, IndexError):
        raise InputError(f"{key} {text!r} is not allowed: needs from:to:count, for example 0.5:3:40") from None
    require(math.isfinite(low) and math.isfinite(high), key, text, "finite numbers")
    require(low >= 0, key, text, "values that are not negative")
    if len(parts) > 1:
        require(count >= 2, key, text, "at least 2 values")
        require(high > low, key, text, "a range whose end lies above its start")
    return [low + (high - low) * i / max(count - 1, 1) for i in range(count)]
