"""`export_plan`: the plan as text for one target, and what that target cannot express."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.errors import InputError
from sigprop.plans.hooks import is_hooked
from sigprop.plans.rows import ParameterPlan
from sigprop.registry import Registry
from sigprop.results.files import write_whole
from sigprop.results.parameters import Init
from sigprop.sites import pattern

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

Writer = Callable[["Plan"], tuple[str, list[str]]]
TARGETS: Registry[Writer] = Registry("export target", __package__ or "")
SHORTEST = 8
"""Characters of a reason that are worth a comment."""
WIDEST = 118


@dataclass(frozen=True)
class Export:
    """Text for a target, and every row of the plan that it cannot express, one line each."""

    target: str
    text: str
    not_expressed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


def export_plan(plan: Plan, target: str, path: str | Path | None = None) -> Export:
    """The plan as code of a target; also written to `path` when given."""
    writer = TARGETS[target]
    if not plan.parameters:
        raise InputError("the plan has no parameters: there is nothing to export")
    body, missing = writer(plan)
    optimizer = plan.meta.get("optimizer", "adamw")
    recipe = plan.meta.get("recipe", "own")
    head = [
        f"Initialization and learning rates of the plan {recipe!r} for {optimizer}, {len(plan)} parameters.",
        "",
        f"Written by sigprop from plan {plan.digest}; sigprop is not needed to run it.",
    ]
    if missing:
        head += ["", f"{len(missing)} rows of the plan cannot be expressed here:", *(f"    {row}" for row in missing)]
    text = '"""' + "\n".join(head).replace("\\", "\\\\").replace('"""', "'''") + '\n"""\n\n' + body.lstrip("\n")
    ast.parse(text)
    if path is not None:
        write_whole(Path(path), text)
    return Export(target, text, tuple(missing))


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


def commented(line: str, why: str) -> str:
    """A line of code with as much of the reason beside it as there is space for."""
    told = " ".join(why.split())
    space = WIDEST - len(line) - len("  # ")
    told = told if len(told) <= space else told[: max(space - 3, 0)].rstrip() + "..."
    return f"{line}  # {told}" if told and space > SHORTEST else line


def init_rows(plan: Plan, code: Callable[[tuple[Any, ...]], str] = repr) -> list[str]:
    """`INIT = {...}`: how every parameter is initialized, by name or pattern."""
    rows = folded(plan, lambda row: spelled(row.init)).items()
    return ["INIT = {", *(commented(f"    {name!r}: {code(how)},", row.why) for name, (how, row) in rows), "}"]


def as_regex(name: str) -> str:
    """A pattern as a regular expression of the whole name."""
    return "^" + re.escape(name).replace(r"\*", r"\d+") + "$"


def settings(row: ParameterPlan) -> tuple[float, float, float]:
    return (row.lr, row.weight_decay, row.eps)


def decayed_settings(row: ParameterPlan) -> tuple[float, float, float]:
    """The same; gains and biases do not decay."""
    return (row.lr, 0.0 if row.is_vector else row.weight_decay, row.eps)


def forward_rows(plan: Plan) -> list[str]:
    """What a plan changes in the forward pass: modules that multiply, and junctions that hooks scale."""
    told = [f"{row.module}: {row.place} times {row.factor:.6g}" for row in plan.scales if row.factor != 1.0]
    return told + hooked_rows(plan)


def hooked_rows(plan: Plan) -> list[str]:
    return [
        f"{row.name}: junction {row.skip:.6g} x + {row.branch:.6g} f(x)" + ", learnable" * row.learnable
        for row in plan.junctions
        if is_hooked(row)
    ]
