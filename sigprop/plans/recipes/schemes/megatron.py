"""Megatron's scaled initialization: one std that follows the width, branch outputs over sqrt(2N)."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.schemes.gpt2 import ends_over_root
from sigprop.structure import Structure


@recipe(
    "megatron",
    paper="Shoeybi et al. 2019; Smith et al. 2022 (Megatron-Turing: sqrt(1/(3d)))",
    applies_to="residual models; made for Pre-LN decoders",
    effect="std sqrt(1/(3d)), branch outputs over sqrt(2N): like gpt2, with the std of the width",
)
def megatron(structure: Structure) -> Plan:
    """`sqrt(1/(3 d))` for all, over `sqrt(number of branches)` for the last weight of each branch."""
    structure.require_junctions("megatron")
    return ends_over_root(structure, math.sqrt(1.0 / (3.0 * structure.width)))
