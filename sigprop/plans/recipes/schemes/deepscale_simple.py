"""DeepScale without correlations: values and outputs initialized like the mlp."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.schemes.deepscale import deepscale_plan, mlp_variances
from sigprop.plans.recipes.schemes.unit import branch_scales
from sigprop.structure import Structure


@recipe(
    "deepscale_simple",
    paper="dslm: Kedia et al. 2024, Simpler Initialization and Fig. 14",
    applies_to="Transformers with plain (not gated) mlps",
    effect="DeepScale with values and outputs as the mlp: bounded variance, no correlation needed",
)
def deepscale_simple(structure: Structure, k: float = 2.0) -> Plan:
    """Value and output matrices with the mlp's variance `(1/d) sqrt((1-p)/2)`, for any correlation."""
    structure.require_transformer("deepscale_simple")
    simple = math.sqrt((1.0 - structure.dropout) / 2.0) / structure.width
    variances: dict[str, tuple[float, float]] = {}
    for junction, spot in zip(structure.junctions, structure.sums, strict=True):
        found = (simple, simple) if junction.attention else mlp_variances(structure, junction, spot.branch)
        variances[junction.weights[0]] = found
    return deepscale_plan(structure, variances, branch_scales(structure, k, 1.0), f"l^2 = 1 - {k:g}/N, b^2 = {k:g}/N")
