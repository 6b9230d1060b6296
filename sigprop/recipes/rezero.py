"""ReZero: every branch starts closed and learns how far to open."""

from __future__ import annotations

from sigprop.recipes.anatomy import Anatomy
from sigprop.recipes.registry import recipe
from sigprop.recipes.rows import draw_all, with_junctions
from sigprop.recipes.xavier import xavier_std
from sigprop.results import Init, Plan


@recipe(
    "rezero",
    paper="Bachlechner et al. 2021",
    applies_to="any model with residual branches; needs surgery=True",
    effect="x + a f(x), a learned from 0: the identity at the start",
)
def rezero(anatomy: Anatomy) -> Plan:
    """`x + a f(x)`, one learnable `a` per branch, 0 at the start; Xavier weights."""
    anatomy.require_junctions("rezero")
    plan = draw_all(anatomy, lambda item, role, size: Init("normal", std=xavier_std(item, role)))
    return with_junctions(plan, anatomy, lambda junction: (1.0, 0.0), "learned from 0", learnable="scalar")
