"""Mitchell's initialization, of OLMo: fan-in, truncated, branch outputs smaller layer by layer."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "mitchell",
    paper="Groeneveld et al. 2024 (OLMo), after Eric Mitchell",
    applies_to="residual models; made for Pre-LN decoders",
    effect="std 1/sqrt(fan_in), branch outputs 1/sqrt(2 fan_in layer), cut at three standard deviations",
)
def mitchell(structure: Structure) -> Plan:
    """`1/sqrt(fan_in)` for matrices, `1/sqrt(2 fan_in l)` for what ends a branch of layer `l`; tables `1/sqrt(d)`."""
    structure.require_junctions("mitchell")

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        layer = 2.0 * structure.layer_of(junction) if role == "output" and junction is not None else 1.0
        return Init("truncated", std=1.0 / math.sqrt(item.fan_in * layer))

    return init_all(structure, rule, embedding=1.0 / math.sqrt(structure.width), kind="truncated")
