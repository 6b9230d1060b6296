r"""A recipe's draws carried to another width: what a rule multiplies them by.

A rule says how the size of a weight should move from the base (or the reference) to the model. A recipe has its own
dependence on width: `fan_in^{-1/2}`, Glorot's, none at all. So the recipe is asked for both, and a row is multiplied by

    size of the recipe at the base / its size at the model * what the rule asks

which gives the recipe's numbers at the base, and the rule's exponents away from it. Without a base the recipe is asked
for the structure of a model of the reference width; recipes that solve for predicted states are not, their matrices go
like `fan_in^{-1/2}` by construction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import Recipe
from sigprop.plans.recipes.rows import times
from sigprop.plans.scaling.dimensions import Dimensions, pattern
from sigprop.results.roles import TABLES, WIDTH_CLASSES
from sigprop.structure import Parameter, Structure

SAME = 1e-9


def carried_from_base(
    made: Plan, scheme: Recipe, base: Structure, weights: Mapping[str, float], options: dict[str, Any]
) -> Plan:
    """The plan with the recipe's sizes of the base, times the rule's. Layers that share their names share the ratio."""
    if scheme.data:
        return made
    sizes = (_by_pattern(made), _by_pattern(scheme(base, **options)))
    ratios = {key: sizes[1].get(key, size) / size for key, size in sizes[0].items() if size > 0.0}
    return _times(made, {row.name: ratios.get(pattern(row.name), 1.0) * weights.get(row.name, 1.0) for row in made})


def carried_from_reference(
    made: Plan, scheme: Recipe, structure: Structure, dims: Mapping[str, Dimensions], readout: float, options: dict
) -> Plan:
    """The plan with the recipe's sizes at the reference, times the rule's; `readout` is the rule's exponent of it."""
    width = next(iter(dims.values())).rows[1]
    grown = (structure.width or width) / width
    there = made if scheme.solves or scheme.data else scheme(_narrowed(structure, grown, width), **options)
    own = {row.name: row.init.size for row in there}
    factors = {}
    for row in made.parameters:
        item = structure.parameters.get(row.name)
        if item is None or (row.init.kind == "keep" and row.role != "readout"):
            continue
        ratio = own[row.name] / row.init.size if row.init.size > 0.0 else 1.0
        if item.role == "readout":
            power = readout - (0.5 if there is made else 0.0)
            factors[row.name] = min(1.0, ratio * dims[row.name].fan_in ** -power)
        elif there is not made and (item.is_matrix or item.role in TABLES):
            hidden = WIDTH_CLASSES[item.role] in ("hidden", "readout")
            factors[row.name] = ratio * (grown**-0.5 if hidden else 1.0)
    return _times(made, factors)


def _narrowed(structure: Structure, grown: float, width: int) -> Structure:
    """What the structure says of a model of the reference width."""

    def size(number: int) -> int:
        return max(1, round(number / grown))

    def narrow(item: Parameter) -> Parameter:
        kind = WIDTH_CLASSES[item.role]
        inward = size(item.fan_in) if kind in ("hidden", "readout") else item.fan_in
        outward = size(item.fan_out) if kind in ("hidden", "embedding") else item.fan_out
        shape = (outward, inward) if item.is_matrix and len(item.shape) == 2 else item.shape
        return replace(item, fan_in=inward, fan_out=outward, shape=shape)

    return replace(structure, parameters={item.name: narrow(item) for item in structure}, width=width)


def _by_pattern(plan: Plan) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for row in plan.parameters:
        if row.init.kind not in ("keep", "constant"):
            groups.setdefault(pattern(row.name), []).append(row.init.size)
    return {key: math.sqrt(fmean(size**2 for size in sizes)) for key, sizes in groups.items()}


def _times(plan: Plan, factors: Mapping[str, float]) -> Plan:
    rows = []
    for row in plan.parameters:
        factor = factors.get(row.name, 1.0)
        if row.init.kind == "constant" or math.isclose(factor, 1.0, rel_tol=SAME):
            rows.append(row)
        else:
            rows.append(replace(row, init=times(row.init, factor), why=f"{row.why}, by the width rule x{factor:.4g}"))
    return replace(plan, parameters=rows)
