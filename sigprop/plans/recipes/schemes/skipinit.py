"""SkipInit: a learnable scalar at the end of every branch instead of normalization."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import draw_all, with_junctions
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


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

    def rule(item: Parameter, role: str, size: int) -> Init:
        return Init("normal", std=math.sqrt(2.0 / item.fan_in))

    value = len(structure.junctions) ** -0.5 if start is None else start
    plan = draw_all(structure, rule)
    return with_junctions(plan, structure, lambda junction: (1.0, value), f"learned from {value:g}", learnable="scalar")
