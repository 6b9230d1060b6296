"""Rows of a plan as the few that a person reads: layers that agree are one row, named with `*` for their number."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan
    from sigprop.plans.rows import ParameterPlan
    from sigprop.results.init import Init


def pattern(name: str) -> str:
    """The name with every number as `*`."""
    return re.sub(r"(?:(?<=\.)|^)\d+(?=\.|$)", "*", name)


def folded(plan: Plan, value: Any) -> dict[str, tuple[Any, ParameterPlan]]:
    """`value(row)` by name; by pattern where all rows of a pattern have one value."""
    families: dict[str, list[ParameterPlan]] = defaultdict(list)
    for row in plan.parameters:
        families[pattern(row.name)].append(row)
    found: dict[str, tuple[Any, ParameterPlan]] = {}
    for key, rows in families.items():
        values = [value(row) for row in rows]
        if all(item == values[0] for item in values) and len(rows) > 1:
            found[key] = (values[0], rows[0])
        else:
            found.update({row.name: (item, row) for row, item in zip(rows, values, strict=True)})
    return found


def spelled(init: Init) -> tuple[Any, ...]:
    """How a parameter is initialized, as a tuple of plain values."""
    if init.kind == "blocks":
        return ("blocks", init.axis, tuple(init.sizes), tuple(map(spelled, init.parts)))
    return (init.kind, init.value if init.kind in ("constant", "keep") else init.std)


def commented(line: str, why: str, width: int = 118) -> str:
    """A line of code with the reason beside it, where there is room."""
    full = f"{line}  # {' '.join(why.split())}" if why else line
    return full if len(full) <= width else full[: width - 3].rstrip() + "..."


def as_regex(name: str) -> str:
    """A pattern as a regular expression of the whole name."""
    return "^" + re.escape(name).replace(r"\*", r"\d+") + "$"


def settings(row: ParameterPlan) -> tuple[float, float, float]:
    return (row.lr, row.weight_decay, row.eps)


def forward_rows(plan: Plan) -> list[str]:
    """What a plan changes in the forward pass: modules that multiply, and junctions that hooks scale."""
    told = [f"{row.module}: {row.place} times {row.factor:.6g}" for row in plan.scales if row.factor != 1.0]
    told += [f"{row.name}: enters the forward pass times {row.multiplier:.6g}" for row in plan.parameters
             if row.multiplier != 1.0]  # fmt: skip
    return told + hooked_rows(plan)


def hooked_rows(plan: Plan) -> list[str]:
    return [
        f"{row.name}: junction {row.skip:.6g} x + {row.branch:.6g} f(x)" + ", learnable" * row.learnable
        for row in plan.junctions
        if not row.folded and (row.skip != 1.0 or row.branch != 1.0 or row.learnable or row.place == "input")
    ]
