"""LeCun: second moments kept through linear maps."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


def lecun_rule(item: Parameter, role: str, size: int) -> Init:
    """`Var W = 1 / fan_in`."""
    return Init("normal", std=1.0 / math.sqrt(item.fan_in))


@recipe(
    "lecun",
    paper="LeCun et al. 1998",
    applies_to="any model",
    effect="variance 1/fan_in: E[x^2] kept through linear maps",
)
def lecun(structure: Structure, embedding: float = 0.02) -> Plan:
    """`Var W = 1 / fan_in`."""
    return init_all(structure, lecun_rule, embedding)
