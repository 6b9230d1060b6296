r"""The spectral condition: matrices of spectral norm `sqrt(fan_out / fan_in)`, so that features keep their size.

A Gaussian matrix of std `s` has spectral norm `s (sqrt(fan_in) + sqrt(fan_out))`, hence

    s = sqrt(fan_out / fan_in) / (sqrt(fan_in) + sqrt(fan_out))
"""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "spectral",
    paper="Yang, Simon & Bernstein 2023, eq. (1) and section 2",
    applies_to="any model",
    effect="spectral norm sqrt(fan_out/fan_in) for every matrix; with Muon's unit scale, for its updates too",
)
def spectral(structure: Structure, embedding: float = 1.0) -> Plan:
    """`std = sqrt(fan_out / fan_in) / (sqrt(fan_in) + sqrt(fan_out))`; tables have rows of entries near one."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        ends = math.sqrt(item.fan_in) + math.sqrt(item.fan_out)
        return Init("normal", std=math.sqrt(item.fan_out / item.fan_in) / ends)

    return init_all(structure, rule, embedding=embedding)
