"""SkipInit: a learnable scalar at the end of every branch instead of normalization."""

from __future__ import annotations

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import with_junctions
from sigprop.plans.recipes.schemes.kaiming import kaiming
from sigprop.structure import Structure


@recipe(
    "skipinit",
    paper="De & Smith 2020",
    applies_to="residual networks without norms; needs surgery=True",
    effect="x + a f(x), a learned from 0 (or 1/sqrt(N)), Kaiming weights: trains without normalization",
)
def skipinit(structure: Structure, start: float | None = 0.0) -> Plan:
    """`x + a f(x)` on Kaiming weights, `a` learnable from `start` (None: `1/sqrt(number of branches)`)."""
    structure.require_junctions("skipinit")
    structure.require_placement("skipinit", "none")

    value = len(structure.junctions) ** -0.5 if start is None else start
    return with_junctions(
        kaiming(structure), structure, lambda junction: (1.0, value), f"learned from {value:g}", learnable="scalar"
    )
