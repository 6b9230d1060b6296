"""Fractions of values that low-precision number formats cannot hold."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS: dict[str, tuple[float, float]] = {
    "bf16": (2.0**-133, torch.finfo(torch.bfloat16).max),
    "fp16": (2.0**-24, torch.finfo(torch.float16).max),
    "fp8_e4m3": (2.0**-9, torch.finfo(torch.float8_e4m3fn).max),
    "fp8_e5m2": (2.0**-16, torch.finfo(torch.float8_e5m2).max),
}
"""Smallest positive (subnormal) and largest finite number of each format."""


def format_fractions(x: Tensor, mask: Tensor | None = None, prefix: str = "") -> dict[str, Tensor]:
    """Per format, the fraction of entries that are not zero but round to zero, and that exceed the largest number.

    `x` is (sequences, tokens, channels); `mask` leaves padding out.
    """
    size = x.double().abs()
    counted = torch.ones_like(size, dtype=torch.bool) if mask is None else mask[:, :, None].expand_as(size)
    total = counted.sum()
    found: dict[str, Tensor] = {}
    for name, (smallest, largest) in FORMATS.items():
        under = (size > 0) & (size <= smallest / 2) & counted
        over = (size > largest) & counted
        found[f"{prefix}{name}_underflow"] = under.sum() / total
        found[f"{prefix}{name}_overflow"] = over.sum() / total
    return found
