r"""The response: how far one step moves what a matrix puts out, relative to what it puts out, at a rate of one.

Adam's first update has entries of one size, the rate. Aligned with what a matrix of fan-in `f` and entries of size
`sigma` reads, `x`, it moves the output by `lr f rms(x)`, while the matrix itself puts out `sigma sqrt(f) rms(x)`:

    response = lr sqrt(f) / sigma

Muon's step has the operator norm `lr c`, `c` its scale of the matrix, whatever it is aligned with; the matrix puts out
`sigma sqrt(rows) |x|`, so that the response is `lr c / (sigma sqrt(rows))`. On the sphere the step is an angle:
`lr sqrt(f)` (AdamH), `lr sqrt(max(rows, columns) / rows)` (MuonH).

A scale that is folded into a weight multiplies both its rate and its size, and cancels. Embeddings and positions are
read row by row: `lr / sigma`. `Plan.suggested_lr` turns the responses into a rate.
"""

from __future__ import annotations

import math
from statistics import median

from sigprop.plans.multipliers import muon_scale
from sigprop.plans.optimizers import MATRIX_ONLY, trained_by
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.planned_states import distribution_of
from sigprop.plans.rows import ParameterPlan
from sigprop.results.roles import MATRICES, TABLES
from sigprop.structure import Parameter, Structure

RMS_OF_ADAM = 0.2
"""What torch's `match_rms_adamw` multiplies besides the root of the longer side."""


def responses(plan: Plan, structure: Structure) -> dict[str, float]:
    """By role, the median response of its parameters; roles that start at zero have none."""
    found: dict[str, list[float]] = {}
    optimizer = str(plan.meta.get("optimizer", "adamw"))
    for row in plan.parameters:
        item, weight = structure.parameters.get(row.name), structure.traced.weights.get(row.name)
        if item is None or weight is None or len(row.shape) < 2 or item.role not in (*MATRICES, *TABLES):
            continue
        size = math.sqrt(distribution_of(row.init, weight.distribution, row.shape).second_moment)
        if size > 0.0:
            found.setdefault(item.role, []).append(row.lr * _response(row, item, size, optimizer))
    return {role: median(values) for role, values in found.items()}


def _response(row: ParameterPlan, item: Parameter, size: float, optimizer: str) -> float:
    kind, _, scale = optimizer.partition(":")
    rows, columns = item.fan_out, item.fan_in
    if trained_by(optimizer, row.role, row.shape) != kind or kind not in MATRIX_ONLY:
        return math.sqrt(1 if item.role in TABLES else columns) / size
    if kind == "adamh":
        return math.sqrt(columns)
    if kind == "muonh":
        return math.sqrt(max(rows, columns) / rows)
    scale = "rms" if kind == "normuon" else scale or "shape"
    return (RMS_OF_ADAM if scale == "rms" else 1.0) * muon_scale(scale, rows, columns) / (size * math.sqrt(rows))
