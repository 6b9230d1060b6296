"""Fixup: residual networks without normalization, each branch closed at the start."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all, with_junctions
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "fixup",
    paper="Zhang, Dauphin & Ma 2019",
    applies_to="residual networks without norms",
    effect="branches and readout end in zeros, other weights Kaiming times L^{-1/(2m-2)}: the identity at the start",
)
def fixup(structure: Structure, multiplier: bool = False) -> Plan:
    """With L branches of m weights: the last 0, the others Kaiming times `L^{-1/(2m-2)}`; the readout 0.

    `multiplier=True` adds the paper's learnable factor (1 at the start) to every branch and needs surgery; its
    scalar biases are not added.
    """
    structure.require_junctions("fixup")
    structure.require_placement("fixup", "none")

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if role in ("output", "readout"):
            return Init("constant", value=0.0)
        std = math.sqrt(2.0 / item.fan_in)
        if junction is None:
            return Init("normal", std=std)
        inside = [structure.parameters[name] for name in junction.inside]
        weights = sum(other.is_matrix and other.role != "query_key" for other in inside)
        branches = len(structure.streams[junction.stream])
        return Init("normal", std=std * branches ** (-1.0 / (2 * weights - 2)) if weights > 1 else std)

    plan = init_all(structure, rule)
    if not multiplier:
        return plan
    return with_junctions(plan, structure, lambda junction: (1.0, 1.0), "learned from 1", learnable="scalar")
