"""`Init`: how the entries of one parameter are initialized."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from sigprop.errors import require

KINDS = ("normal", "truncated", "uniform", "orthogonal", "constant", "keep", "blocks")


def is_finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


@dataclass(frozen=True)
class Init:
    """How the entries of one parameter are initialized.

    `normal`, `uniform`, `orthogonal`: zero mean, entries of root mean square `std`; `truncated`: a normal of that root
    mean square, cut at three of its standard deviations.
    `constant`: every entry is `value`. `keep`: what the model holds now, times `value`.
    `blocks`: the `parts`, side by side along `axis` with the given `sizes` (fused query, key and value).
    """

    kind: str = "keep"
    std: float = 0.0
    value: float = 1.0
    axis: int = 0
    sizes: tuple[int, ...] = ()
    parts: tuple[Init, ...] = ()

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "init kind", self.kind, f"one of {', '.join(KINDS)}")
        require(is_finite(self.std) and self.std >= 0, "init std", self.std, "a number that is not negative")
        require(is_finite(self.value), "init value", self.value, "a finite number")
        if self.kind == "blocks":
            require(isinstance(self.axis, int), "init axis", self.axis, "a number of an axis")
            require(len(self.parts) == len(self.sizes) > 0, "init sizes", self.sizes, "one size per part")

    @property
    def size(self) -> float:
        """Root mean square of the entries; `keep` counts as its factor."""
        if self.kind == "blocks":
            total = sum(size * part.size**2 for size, part in zip(self.sizes, self.parts, strict=True))
            return math.sqrt(total / sum(self.sizes))
        return abs(self.value) if self.kind in ("constant", "keep") else self.std

    def __str__(self) -> str:
        if self.kind == "blocks":
            return " | ".join(map(str, self.parts))
        if self.kind in ("constant", "keep"):
            return self.kind if self == Init("keep") else f"{self.kind} {self.value:.4g}"
        return f"{self.kind} {self.std:.4g}"


KEEP = Init("keep")
