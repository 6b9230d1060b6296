"""One standard deviation for everything."""

from __future__ import annotations

from sigprop.errors import require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Structure


@recipe(
    "fixed",
    paper="Devlin et al. 2019 (BERT)",
    applies_to="any model",
    effect="every matrix and embedding with std 0.02, whatever its width",
)
def fixed(structure: Structure, std: float = 0.02) -> Plan:
    """`W ~ N(0, std^2)`."""
    require(std > 0, "std", std, "a positive number")
    return init_all(structure, lambda item, role, size: Init("normal", std=std), embedding=std)
