"""Peri-LN: models whose branches both start and end in a norm; the last gain sets how much a branch adds."""

from __future__ import annotations

from sigprop.errors import UnsupportedError, require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import with_inits
from sigprop.plans.recipes.schemes.fixed import fixed
from sigprop.results import Init
from sigprop.structure import Structure


@recipe(
    "peri_ln",
    paper="Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture",
    applies_to="models whose branches read a norm and end in one (Gemma 2 and 3, GLM 4)",
    effect="matrices std 0.02, whose scale the last norm undoes; gains of branch ends at 1, or `gain`",
)
def peri_ln(structure: Structure, std: float = 0.02, gain: float = 1.0) -> Plan:
    """`x + gain * norm(f(norm(x)))`: the stream's variance grows by `gain^2` a branch, linearly with depth."""
    structure.require_junctions("peri_ln")
    require(std > 0 and gain > 0, "std, gain", (std, gain), "positive numbers")
    bare = [junction.name for junction in structure.junctions if not {"pre", "out"} <= junction.norms]
    if bare:
        raise UnsupportedError(
            f"peri_ln is for models whose branches start and end in a norm: {bare[0]} does not; a plan adds no modules"
        )
    plan = fixed(structure, std)
    shifts = {name: junction.shift for junction in structure.junctions for name in junction.weights}
    inits = {name: Init("constant", value=gain - shift) for name, shift in shifts.items()}
    return with_inits(plan, inits, f", ends a branch with gain {gain:g}")
