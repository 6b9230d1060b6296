"""Xavier: the compromise between fan-in and fan-out, for a matrix, for the pieces of a fused one, or for a head."""

from __future__ import annotations

import math

from sigprop.errors import require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure

PER = ("matrix", "part", "head")


def xavier_std(item: Parameter, role: str, per: str = "matrix", gain: float = 1.0) -> float:
    """`gain * sqrt(2 / (fan_in + fan_out))`; `part` takes the outputs of query, key or value alone, `head` of one head.

    A fused matrix is split evenly, as wide as its values.
    """
    fan_out = item.fan_out
    if per == "part" and item.parts:
        fan_out = sum(part.size for part in item.parts if part.role == "value")
    if per == "head" and item.head_width and role in ("query_key", "value"):
        fan_out = item.head_width
    return gain * math.sqrt(2.0 / (item.fan_in + fan_out))


@recipe(
    "xavier",
    paper="Glorot & Bengio 2010",
    applies_to="any model",
    effect="variance 2/(fan_in + fan_out), per matrix, per fused part or per head",
)
def xavier(structure: Structure, per: str = "matrix", embedding: float = 0.02, kind: str = "normal") -> Plan:
    """`Var W = 2 / (fan_in + fan_out)`.

    On values, `per="matrix"` gives a branch gain `C1 = 1/(1-p)`, `per="head"` the 2.2 of dslm's analysis, and a fused
    query-key-value matrix taken whole 0.56 (FORMULAS 3).
    """
    require(per in PER, "per", per, " or ".join(PER))

    def rule(item: Parameter, role: str, size: int) -> Init:
        return Init(kind, std=xavier_std(item, role, per))

    return init_all(structure, rule, embedding)
