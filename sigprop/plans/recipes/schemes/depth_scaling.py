"""Depth scalings of the residual sum: `b^2 = k / N^alpha`, with or without the skip scaled to match."""

from __future__ import annotations

import math

from sigprop.errors import require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import with_junctions
from sigprop.plans.recipes.schemes.xavier import xavier
from sigprop.structure import Junction, Structure


@recipe(
    "depth_scaling",
    paper="dslm 4.4, 5.6 and App. L (k and alpha of all prior work)",
    applies_to="any model with residual branches",
    effect="branches times sqrt(k/N^alpha), skip sqrt(1 - that) or 1: gradient growth exp(+-k N^{1-alpha})",
)
def depth_scaling(structure: Structure, k: float = 2.0, alpha: float = 1.0, skip: str = "unit") -> Plan:
    """`l x + b f(x)`, `b^2 = k / N^alpha`, `l^2 = 1 - b^2` (`skip="unit"`) or 1 (`skip="one"`), on Xavier."""
    structure.require_junctions("depth_scaling")
    require(k > 0, "k", k, "a positive number")
    require(skip in ("unit", "one"), "skip", skip, "unit (1 - b^2) or one")

    def scales(junction: Junction) -> tuple[float, float]:
        squared = k / structure.layers(junction.stream) ** alpha
        if skip == "unit":
            require(squared < 1, "k / N^alpha", f"{squared:.3g}", "less than 1 with a unit skip")
        return (math.sqrt(1.0 - squared) if skip == "unit" else 1.0), math.sqrt(squared)

    plan = xavier(structure)
    return with_junctions(plan, structure, scales, f"b^2 = {k:g}/N^{alpha:g}")
