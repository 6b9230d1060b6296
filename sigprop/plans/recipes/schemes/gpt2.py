"""GPT-2: fixed std, the last weight of every branch divided by the root of the number of branches."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "gpt2",
    paper="Radford et al. 2019",
    applies_to="residual models; made for Pre-LN decoders",
    effect="std 0.02, branch outputs over sqrt(number of branches): the stream grows by a constant in all",
)
def gpt2(structure: Structure, std: float = 0.02) -> Plan:
    """`std` for all, `std / sqrt(2N)` for the last weight of each of the 2N branches of a stream."""
    structure.require_junctions("gpt2")
    return ends_over_root(structure, std)


def ends_over_root(structure: Structure, std: float) -> Plan:
    """Everything with `std`; the last weight of a branch over the root of the number of branches of its stream."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if role != "output" or junction is None:
            return Init("normal", std=std)
        return Init("normal", std=std / math.sqrt(len(structure.streams[junction.stream])))

    return init_all(structure, rule, embedding=std)
