"""DS-Init: every weight of layer l divided by the root of l."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all, scale_rows
from sigprop.plans.recipes.schemes.xavier import xavier_std
from sigprop.results import Init
from sigprop.structure import Structure


@recipe(
    "ds_init",
    paper="Zhang, Titov & Sennrich 2019",
    applies_to="Transformers",
    effect="weights of layer l over sqrt(l): later branches fade like 1/l",
)
def ds_init(structure: Structure, alpha: float = 1.0) -> Plan:
    """`W ~ U` with Xavier's variance times `alpha^2 / l` in layer l."""
    structure.require_transformer("ds_init")
    plan = init_all(structure, lambda item, role, size: Init("uniform", std=xavier_std(item, role)))
    places = {item.name: structure.junction_of(item) for item in structure if item.is_matrix}
    factors = {
        name: alpha / math.sqrt(structure.layer_of(place)) for name, place in places.items() if place is not None
    }
    return scale_rows(plan, factors, "over sqrt(layer)")
