"""ReZero: every branch starts closed and learns how far to open."""

from __future__ import annotations

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import with_junctions
from sigprop.plans.recipes.schemes.xavier import xavier
from sigprop.structure import Structure


@recipe(
    "rezero",
    paper="Bachlechner et al. 2021",
    applies_to="any model with residual branches; needs surgery=True",
    effect="x + a f(x), a learned from 0: the identity at the start",
)
def rezero(structure: Structure) -> Plan:
    """`x + a f(x)`, one learnable `a` per branch, 0 at the start; Xavier weights."""
    structure.require_junctions("rezero")
    plan = xavier(structure)
    return with_junctions(plan, structure, lambda junction: (1.0, 0.0), "learned from 0", learnable="scalar")
