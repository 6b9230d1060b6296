"""Critical: a common gain on the block weights at which partial Jacobians neither grow nor decay."""

from __future__ import annotations

from typing import Any

from sigprop.errors import InputError, UnsupportedError
from sigprop.measurement.criticality import check_criticality
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import RECIPES, recipe
from sigprop.plans.recipes.rows import initialized_copy, scale_rows
from sigprop.structure import Structure

SMALL_GAINS = (
    "; with residual sums it falls to 1 only as the gain goes to 0: let the branches shrink with depth instead (unit, "
    "depth_scaling)"
)


@recipe(
    "critical",
    paper="apjn: Doshi, He & Gromov 2023",
    applies_to="models with repeated blocks and real parameters",
    effect="block weights times the gain at which the measured chi_J is 1: gradients survive the depth",
    data=True,
)
def critical(structure: Structure, base: str = "lecun", data: Any = None, probes: int = 8, seed: int = 0) -> Plan:
    """The `base` recipe with all matrices of the repeated blocks times `g`, `chi_J(g) = 1` by search."""
    plan = RECIPES[base](structure)
    if plan.junctions:
        raise InputError(f"base = {base!r} is not allowed: needs a recipe that does not scale junctions")
    twin = initialized_copy(structure, plan, seed)
    found = check_criticality(twin, structure.batch if data is None else data, probes=probes, seed=seed)
    if found.gain is None:
        hint = "" if not structure.junctions or "above" not in found.notes[-1] else SMALL_GAINS
        raise UnsupportedError(f"critical: {found.notes[-1]}{hint}")
    blocks = tuple(f"{row['name']}." for row in found.blocks)
    inside = [item.name for item in structure if item.is_matrix and item.name.startswith(_stack_of(blocks))]
    plan = scale_rows(plan, dict.fromkeys(inside, found.gain), f"x{found.gain:.4g} for chi_J = 1")
    plan.meta = {"base": base, "gain": found.gain, "chi_before": found.factor}
    return plan


def _stack_of(blocks: tuple[str, ...]) -> tuple[str, ...]:
    """Prefixes of the lists that the blocks are numbered in, so that the first block is included."""
    return tuple({name.rstrip(".").rpartition(".")[0] + "." for name in blocks})
