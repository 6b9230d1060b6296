"""Frozen weights are the user's: a plan that would draw or scale one is refused."""

from __future__ import annotations

from sigprop.errors import UnsupportedError
from sigprop.results import Plan
from sigprop.results.init import KEEP
from sigprop.structure import Structure


def require_untouched(plan: Plan, structure: Structure) -> Plan:
    """The plan, if it leaves every frozen parameter as it is."""
    frozen = {item.name for item in structure if item.frozen}
    touched = [
        row.name for row in plan.parameters if row.name in frozen and (row.init != KEEP or row.multiplier != 1.0)
    ]
    if not touched:
        return plan
    others = f" and {len(touched) - 1} more" if len(touched) > 1 else ""
    raise UnsupportedError(
        f"{plan.meta.get('recipe')} would draw or scale {touched[0]}{others}, which is frozen. Plan the model before "
        'its weights are loaded and frozen, or take the recipe "own", which draws nothing and gives what is trained '
        '(adapters) its rates: sp.plan(model, "own", width="mup")'
    )
