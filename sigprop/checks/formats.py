"""Low-precision number formats: what of a normal tensor they lose, and the power of two that brings it into range."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """Smallest positive and largest number; `block` entries share a scale, which itself has a range.

    `scaled`: libraries multiply a tensor by a scale of its own before the cast.
    """

    name: str
    smallest: float
    largest: float
    block: int = 1
    scaled: bool = False
    scale_smallest: float = 1.0
    scale_largest: float = 1.0


FORMATS = (
    Format("bf16", 2.0**-133, 3.3895e38),
    Format("fp16", 2.0**-24, 65504.0),
    Format("fp8 E4M3", 2.0**-9, 448.0, scaled=True),
    Format("fp8 E5M2", 2.0**-16, 57344.0, scaled=True),
    Format("MXFP8", 2.0**-9, 448.0, 32, True, 2.0**-127, 2.0**127),
    Format("NVFP4", 0.5, 6.0, 16, True, 2.0**-9, 448.0),
)
"""MXFP8: E4M3 entries with a power-of-two scale (E8M0) per 32; NVFP4: E2M1 entries with an E4M3 scale per 16."""


@dataclass(frozen=True)
class Rounding:
    """Shares of entries that round to zero and that pass the largest number; the scale that cures it, and after it."""

    underflow: float
    overflow: float
    cure: float
    after: float
    std: float
    smallest: float
    largest: float


def losses(format: Format, mean: float, std: float) -> Rounding:
    """Of a normal tensor. A block format first divides by the block's largest entry, within its scale's range."""
    under, over = _shares(format, mean, std)
    cure = 2.0 ** round(math.log2(_target(format) / math.hypot(mean, std)))
    after = sum(_shares(format, mean * cure, std * cure))
    return Rounding(under, over, cure, after, std, *_range(format))


def _range(format: Format) -> tuple[float, float]:
    return format.smallest * format.scale_smallest, format.largest * format.scale_largest


def _shares(format: Format, mean: float, std: float) -> tuple[float, float]:
    """Shares that underflow and overflow; a block whose scale rounds to zero is lost as a whole."""
    if format.block == 1:
        return 1.0 - _beyond(format.smallest / 2, mean, std), _beyond(format.largest, mean, std)
    scale = (abs(mean) + std * math.sqrt(2 * math.log(format.block))) / format.largest
    if scale < format.scale_smallest / 2:
        return 1.0, 0.0
    over = _beyond(format.largest * format.scale_largest, mean, std) if scale > format.scale_largest else 0.0
    return 1.0 - _beyond(format.smallest * min(scale, format.scale_largest) / 2, mean, std), over


def _beyond(size: float, mean: float, std: float) -> float:
    """Share of entries of absolute value above `size`."""
    root = std * math.sqrt(2.0)
    return 0.5 * (math.erfc((size - mean) / root) + math.erfc((size + mean) / root))


def _target(format: Format) -> float:
    """One where that is well inside the range, else the middle of the range in logarithms."""
    smallest, largest = _range(format)
    return 1.0 if smallest * 1024 < 1.0 < largest / 16 else math.sqrt(smallest * largest)
