"""`export_plan`: the plan as text for one target, and what that target cannot express."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sigprop.errors import InputError
from sigprop.registry import Registry
from sigprop.results.files import write_whole

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

Writer = Callable[["Plan"], tuple[str, list[str]]]
TARGETS: Registry[Writer] = Registry("export target", __package__ or "")


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
    head = [f"Initialization and learning rates of the plan {recipe!r} for {optimizer}, {len(plan)} parameters.", "",
            f"Written by sigprop from plan {plan.digest}; sigprop is not needed to run it."]  # fmt: skip
    if missing:
        head += ["", f"{len(missing)} rows of the plan cannot be expressed here:", *(f"    {row}" for row in missing)]
    text = '"""' + "\n".join(head).replace("\\", "\\\\").replace('"""', "'''") + '\n"""\n\n' + body.lstrip("\n")
    ast.parse(text)
    if path is not None:
        write_whole(Path(path), text)
    return Export(target, text, tuple(missing))
