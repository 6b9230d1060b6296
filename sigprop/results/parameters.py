"""How the entries of a parameter are initialized, and the roles of parameters: one vocabulary for profiles, plans,
recipes and width rules.

    embedding    rows chosen by ids (`tied`: also the readout)
    positional   a learned table that is added to the stream or to scores: positions, class tokens
    input        a matrix that reads the model's input, or stands before the first residual branch
    query_key    a matrix whose output becomes attention scores
    value        a matrix whose output is mixed by attention
    hidden       any other matrix between input and readout
    output       the last weight of a residual branch (a matrix, or the gain of a norm that ends it)
    router       a matrix that chooses experts
    readout      the last matrix before the model's output
    norm gain    what multiplies a normalized signal, channel by channel
    gain         any other factor per channel or head
    bias         what is added
    scale        a learnable scale that a plan adds to a branch
    vector       a gain or bias, where shapes alone were compared
    fixed        nothing grows with the width, where shapes alone were compared
    unused       not reached by the forward pass

`predict` reads a parameter's use alone and calls every matrix inside `hidden`; `structure` tells `query_key`, `value`
and `output` apart.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from sigprop.errors import require

TABLES = ("embedding", "positional")
MATRICES = ("input", "query_key", "value", "hidden", "output", "router", "readout")
VECTORS = ("norm gain", "gain", "bias", "scale", "vector", "unused")
ROLES = (*TABLES, *MATRICES, *VECTORS, "fixed")
WIDTH_CLASSES = {
    **dict.fromkeys(("embedding", "positional", "input"), "embedding"),
    **dict.fromkeys(("query_key", "value", "hidden", "output"), "hidden"),
    **dict.fromkeys(("router", "readout"), "readout"),
    **dict.fromkeys((*VECTORS, "fixed"), "vector"),
}
"""By role, what grows with the width: outputs alone, both sides, inputs alone, or a vector's length."""


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
