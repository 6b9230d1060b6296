"""Surgery: residual junctions scaled by hooks, for models where folding is not possible or not wanted.

The plan's rows say which module computes each branch and which one takes the stream in; applying the plan puts a
hook on both (`results/junctions.py`). No class is changed and no module replaced.
"""

from __future__ import annotations

from dataclasses import replace

from sigprop.errors import UnsupportedError
from sigprop.plans.recipes.rows import scale_row
from sigprop.results import Plan
from sigprop.results.junctions import LEARNED


def with_learned_scales(plan: Plan, surgery: bool) -> Plan:
    """The plan with the scale of every branch as a parameter."""
    if not surgery or not plan.junctions:
        what = "surgery=True" if plan.junctions else "a recipe that scales junctions"
        raise UnsupportedError(f"{plan.meta.get('recipe')}: learnable scales are new parameters and need {what}")
    rows = [replace(row, learnable=True) for row in plan.junctions]
    known = {row.name for row in plan.parameters}
    added = [scale_row(row) for row in rows if f"{row.name}.{LEARNED}" not in known]
    return replace(plan, parameters=plan.parameters + added, junctions=rows)


def check_surgery(plan: Plan) -> Plan:
    """The plan itself, if every junction that needs scales has modules to hook."""
    for row in plan.junctions:
        if row.branch == 1.0 and row.skip == 1.0 and not row.learnable:
            continue
        if not row.name:
            raise UnsupportedError("a residual branch has no module of its own: nothing to hook")
        if row.skip != 1.0 and not row.entry:
            raise UnsupportedError(f"{row.name}: no module takes the residual stream in here: nothing to hook")
    return plan
