r"""Tied readouts: a table that is drawn for the start of the stream is also the readout.

Drawn with std `s`, it would give logits of std `s sqrt(width)` from a normalized stream. Where that is above one, the
factor `1 / (s sqrt(width))` goes into what the readout reads: gain and bias of the norm before it, exactly.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sigprop.plans.recipes.fold import carrying
from sigprop.results import Plan
from sigprop.structure import Structure


def with_tied_readout(plan: Plan, structure: Structure, optimizer: str) -> Plan:
    """The plan with the factor in the rows of the final norm; `meta["tied_factor"]` holds it where there is one."""
    tied = structure.tied_table
    row = None if tied is None else next(row for row in plan.parameters if row.name == tied.name)
    if row is None or row.init.std == 0.0 or not structure.readout_input:
        return plan
    factor = min(1.0, 1.0 / (row.init.std * math.sqrt(structure.width)))
    if factor == 1.0:
        return plan
    rows = [
        replace(found, why=f"{found.why} (tied readout)") if found is not item else item
        for item in plan.parameters
        for found in [carrying(item, factor, optimizer) if item.name in structure.readout_input else item]
    ]
    return replace(plan, parameters=rows, meta={**plan.meta, "tied_factor": factor})
