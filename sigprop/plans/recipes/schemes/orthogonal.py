"""Orthogonal matrices: singular values all equal."""

from __future__ import annotations

import math

from sigprop.errors import require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "orthogonal",
    paper="Saxe et al. 2014",
    applies_to="any model",
    effect="orthogonal matrices, all singular values equal to the gain",
)
def orthogonal(structure: Structure, gain: float = 1.0, embedding: float = 0.02) -> Plan:
    """`W W^T` or `W^T W` is `gain^2` times the identity: entries of mean square `gain^2 / max(fan_in, fan_out)`."""
    require(gain > 0, "gain", gain, "a positive number")

    def rule(item: Parameter, role: str, size: int) -> Init:
        rows = item.shape[0] if not item.parts else size
        columns = math.prod(item.shape) // item.shape[0] if not item.parts else item.fan_in
        return Init("orthogonal", std=gain / math.sqrt(max(rows, columns)))

    return init_all(structure, rule, embedding)
