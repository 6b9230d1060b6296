"""The model's own initialization, kept as it is: what a width or depth rule stands on when no recipe is asked for."""

from __future__ import annotations

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import kept_row
from sigprop.structure import Structure


@recipe(
    "own",
    paper="the model's author",
    applies_to="any model",
    effect="nothing is initialized: every parameter keeps the values that the model has",
    solves=True,
)
def own(structure: Structure) -> Plan:
    """`w` as it is."""
    return Plan([kept_row(item) for item in structure])
