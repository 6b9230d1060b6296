"""Small-init for matrices, Wang's depth scaling for branch outputs."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "small_init",
    paper="Nguyen & Salazar 2019; Wang & Komatsuzaki 2021 (GPT-J, GPT-NeoX)",
    applies_to="Transformers",
    effect="std sqrt(2/(5d)), branch outputs 2/(N sqrt(d))",
)
def small_init(structure: Structure) -> Plan:
    """`std = sqrt(2 / (5 d))` (Xavier of a d x 4d matrix) for all, `2 / (N sqrt(d))` for branch outputs."""
    structure.require_transformer("small_init")
    width = structure.width
    small = math.sqrt(2.0 / (5.0 * width))

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if role != "output" or junction is None:
            return Init("normal", std=small)
        return Init("normal", std=2.0 / (structure.layers(junction.stream) * math.sqrt(width)))

    return init_all(structure, rule, embedding=small)
