"""Kaiming: second moments kept through ReLU."""

from __future__ import annotations

import math

from sigprop.errors import require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "kaiming",
    paper="He et al. 2015",
    applies_to="any model; derived for ReLU",
    effect="variance 2/fan_in (or 2/fan_out): E[x^2] kept through ReLU layers",
)
def kaiming(structure: Structure, mode: str = "fan_in", embedding: float = 0.02) -> Plan:
    """`Var W = 2 / fan`."""
    require(mode in ("fan_in", "fan_out"), "mode", mode, "fan_in or fan_out")

    def rule(item: Parameter, role: str, size: int) -> Init:
        return Init("normal", std=math.sqrt(2.0 / getattr(item, mode)))

    return init_all(structure, rule, embedding)
