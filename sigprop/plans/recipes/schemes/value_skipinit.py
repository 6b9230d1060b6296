"""Value-SkipInit: attention starts as the identity over tokens."""

from __future__ import annotations

from dataclasses import replace

from sigprop.errors import UnsupportedError
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import scale_row
from sigprop.plans.recipes.schemes.xavier import xavier
from sigprop.plans.rows import JunctionPlan
from sigprop.structure import Structure


@recipe(
    "value_skipinit",
    paper="He et al. 2023",
    applies_to="Transformers with a value matrix as wide as the attention output; needs surgery=True",
    effect="attention (I + b A) V, b learned from 0: no mixing of tokens, so no rank collapse, at the start",
)
def value_skipinit(structure: Structure) -> Plan:
    """`(a I + b A(x)) V` in every self-attention, `a = 1` fixed and `b` learnable from 0; Xavier weights."""
    structure.require_transformer("value_skipinit")
    plan = xavier(structure)
    rows = []
    for junction in structure.junctions:
        if not junction.attention or junction.cross:
            continue
        if not junction.weights:
            raise UnsupportedError(f"value_skipinit: the attention at {junction.exit} does not end in a matrix")
        last = structure.parameters[junction.weights[0]]
        values = [structure.parameters[name] for name in junction.inside]
        value = next((item for item in values if item.role == "value" and not item.parts), None)
        if value is None or value.fan_out != last.fan_in:
            raise UnsupportedError(f"value_skipinit: {last.name} needs a value matrix of its own, {last.fan_in} wide")
        rows.append(
            JunctionPlan(
                last.name.rpartition(".")[0],
                1.0,
                0.0,
                folded=False,
                entry=value.name.rpartition(".")[0],
                level=0.0,
                learnable=True,
                place="input",
                why="V + b A V, b learned from 0",
            )
        )
    return replace(plan, parameters=plan.parameters + [scale_row(row) for row in rows], junctions=rows)
