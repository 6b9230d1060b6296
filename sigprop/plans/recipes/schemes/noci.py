"""Noci et al.: branches over the root of the depth, so that tokens do not become correlated."""

from __future__ import annotations

import math

from sigprop.errors import require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all, with_junctions
from sigprop.plans.recipes.schemes.xavier import xavier_std
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "noci",
    paper="Noci et al. 2022",
    applies_to="Transformers",
    effect="branches times 1/sqrt(N), inverse temperature on the scores: rank collapse slowed",
)
def noci(structure: Structure, inverse_temperature: float = 1.0) -> Plan:
    """`x + f(x) / sqrt(N)` on Xavier; query and key times the root of the inverse temperature."""
    structure.require_transformer("noci")
    require(inverse_temperature > 0, "inverse_temperature", inverse_temperature, "a positive number")

    def rule(item: Parameter, role: str, size: int) -> Init:
        gain = math.sqrt(inverse_temperature) if role == "query_key" else 1.0
        return Init("normal", std=xavier_std(item, role, gain=gain))

    plan = init_all(structure, rule)
    return with_junctions(plan, structure, lambda j: (1.0, structure.layers(j.stream) ** -0.5), "branch over sqrt(N)")
