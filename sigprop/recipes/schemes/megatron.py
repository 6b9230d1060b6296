"""Megatron's scaled initialization: one std that follows the width, branch outputs over sqrt(2N)."""

from __future__ import annotations

import math

from sigprop.recipes.registry import recipe
from sigprop.recipes.rows import draw_all
from sigprop.results import Init, Plan
from sigprop.structure import Parameter, Structure


@recipe(
    "megatron",
    paper="Shoeybi et al. 2019; Smith et al. 2022 (Megatron-Turing: sqrt(1/(3d)))",
    applies_to="residual models; made for Pre-LN decoders",
    effect="std sqrt(1/(3d)), branch outputs over sqrt(2N): like gpt2, with the std of the width",
)
def megatron(structure: Structure) -> Plan:
    """`sqrt(1/(3 d))` for all, over `sqrt(number of branches)` for the last weight of each branch."""
    structure.require_junctions("megatron")
    std = math.sqrt(1.0 / (3.0 * structure.width))

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if role != "output" or junction is None:
            return Init("normal", std=std)
        return Init("normal", std=std / math.sqrt(len(structure.streams[junction.stream])))

    return draw_all(structure, rule, embedding=std)
