"""What may start at zero: the readout, the queries, the ends of branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sigprop.errors import UnknownNameError, UnsupportedError
from sigprop.plans.plan import Plan
from sigprop.results import Init
from sigprop.structure import Structure

ZEROS = ("readout", "query", "branch ends")


def with_zeros(plan: Plan, structure: Structure, zeros: Sequence[str]) -> Plan:
    """The plan with some draws at zero; rates stay what they are.

    A readout at zero starts at a loss of ln(classes), queries at zero at even attention (Yang et al. 2022, D.2), branch
    ends at the identity. A tied readout is the embedding and stays, as do queries inside a fused matrix.
    """
    names: set[str] = set()
    for choice in zeros:
        if choice not in ZEROS:
            raise UnknownNameError("zeros", choice, ZEROS)
        found = _names(structure, choice)
        if not found:
            raise UnsupportedError(f"zeros={choice!r}: this model has no weight that is that alone (tied or fused)")
        names |= found
    rows = [
        replace(row, init=Init("constant", value=0.0), why=f"{row.why}; starts at zero") if row.name in names else row
        for row in plan.parameters
    ]
    return replace(plan, parameters=rows)


def _names(structure: Structure, choice: str) -> set[str]:
    if choice == "readout":
        return {item.name for item in structure if item.role == "readout"}
    if choice == "query":
        alone = [
            scores.query
            for scores in structure.scores
            if scores.shift == 0.0 and not any(structure.parameters[name].parts for name in scores.query)
        ]
        return {name for names in alone for name in names}
    ends = [junction for junction in structure.junctions if junction.shift == 0.0]
    return {name for junction in ends for name in junction.weights}
