"""Surgery: residual junctions scaled by hooks, for models where folding is not possible or not wanted.

The plan's rows say which module computes each branch and which one takes the stream in; applying the plan puts a
hook on both (`results/junctions.py`). No class is changed and no module replaced.
"""

from __future__ import annotations

from sigprop.errors import UnsupportedError
from sigprop.results import Plan


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
