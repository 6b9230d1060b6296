r"""u-muP: unit-scaled muP, written as weights and rates alone.

The paper initializes every weight with variance 1, multiplies the forward pass by `A` and takes the Adam rate `C`:

                  A                   C
    input         1                   1 / sqrt(fan_out)
    hidden        1 / sqrt(fan_in)    1 / sqrt(fan_in)
    output        1 / fan_in          1
    in a branch   1 / sqrt(N)         1 / sqrt(N)         on top, N branches

A factor that is folded into its weight multiplies its size and its rate, so that hidden matrices have std and rate
`1 / sqrt(fan_in)` and `1 / fan_in`. `A` of a branch is its scale at the junction.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all, with_junctions
from sigprop.plans.rows import ParameterPlan
from sigprop.results import Init
from sigprop.results.roles import TABLES
from sigprop.structure import Parameter, Structure


@recipe(
    "u_mup",
    paper="Blake et al. 2024, u-muP, table 2",
    applies_to="residual models, Adam and AdamW, without a width rule (it is one)",
    effect="std 1/sqrt(fan_in), readout 1/fan_in, branches over sqrt(N), with u-muP's learning rates",
)
def u_mup(structure: Structure) -> Plan:
    structure.require_junctions("u_mup")

    def rule(item: Parameter, role: str, size: int) -> Init:
        power = 1.0 if role == "readout" else 0.0 if role == "input" else 0.5
        return Init("normal", std=item.fan_in**-power)

    plan = init_all(structure, rule, embedding=1.0)
    rows = [_with_rate(row, structure) for row in plan.parameters]
    branches = {number: len(stream) for number, stream in enumerate(structure.streams)}
    return with_junctions(
        replace(plan, parameters=rows),
        structure,
        lambda junction: (1.0, branches[junction.stream] ** -0.5),
        "u-muP: branches over sqrt(N)",
    )


def _with_rate(row: ParameterPlan, structure: Structure) -> ParameterPlan:
    item = structure.parameters[row.name]
    junction = structure.junction_of(item)
    deep = len(structure.streams[junction.stream]) ** -0.5 if junction is not None and len(row.shape) > 1 else 1.0
    if row.role in (*TABLES, "input"):
        rate = 1.0 / math.sqrt(structure.width)
    elif item.is_matrix:
        rate = 1.0 / item.fan_in
    else:
        rate = 1.0
    return replace(row, lr=rate * deep, weight_decay=1.0 / (rate * deep))
