r"""The response: how far one step moves what a matrix puts out, relative to what it puts out, at a rate of one.

Adam's first update has entries of one size, the rate. Aligned with what a matrix of fan-in `f` and entries of size
`sigma` reads, `x`, it moves the output by `lr f rms(x)`, while the matrix itself puts out `sigma sqrt(f) rms(x)`:

    response = lr sqrt(f) / sigma

A scale that is folded into a weight multiplies both its rate and its size, and cancels. Embeddings and positions are
read row by row: `lr / sigma`. `Plan.suggested_lr` turns the responses into a rate.
"""

from __future__ import annotations

import math
from statistics import median

from sigprop.plans.recipes.walk import distribution_of
from sigprop.results import Plan
from sigprop.results.roles import MATRICES, TABLES
from sigprop.structure import Structure


def responses(plan: Plan, structure: Structure) -> dict[str, float]:
    """By role, the median response of its parameters; roles that start at zero have none."""
    found: dict[str, list[float]] = {}
    for row in plan.parameters:
        item, weight = structure.parameters.get(row.name), structure.traced.weights.get(row.name)
        if item is None or weight is None or len(row.shape) < 2 or item.role not in (*MATRICES, *TABLES):
            continue
        size = math.sqrt(distribution_of(row.init, weight.distribution, row.shape).second_moment)
        inputs = 1 if item.role in TABLES else item.fan_in
        if size > 0.0:
            found.setdefault(item.role, []).append(row.lr * math.sqrt(inputs) / size)
    return {role: median(values) for role, values in found.items()}
