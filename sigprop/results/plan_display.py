"""A plan as a table and in sentences: what changes and why, alike rows as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sigprop.grid import Grid, Shown

if TYPE_CHECKING:
    from sigprop.results.plan import JunctionPlan, ParameterPlan, Plan

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
MULTIPLIERS = {"forward": "multiplier", "lr": "lr", "decay": "weight_decay", "eps": "eps"}
FOLLOWING = ("decay", "eps")
"""Multipliers that follow from the learning rate's: in the table only when all is asked for."""


class ShownPlan(Shown):
    """How a `Plan` shows itself."""

    def table(self: Plan, all: bool = False) -> Grid:  # type: ignore[misc]
        """What changes, rows that are alike up to numbers as one with first and last values; `all` shows every row."""
        changed = [row for row in self.parameters if all or _changes(row)]
        used = [key for key, name in MULTIPLIERS.items() if any(getattr(row, name) != 1.0 for row in changed)]
        shown = [key for key in used if all or key not in FOLLOWING or "lr" not in used]
        rows = [_parameter(row, shown) for row in changed]
        rows += [_junction(row, len(shown)) for row in self.junctions if all or not row.folded or row.why]
        scales = [f"{row.place} x {row.factor:.3g}" for row in self.scales]
        rows += [
            [f"module {row.module}", text, *[""] * len(shown), row.why]
            for row, text in zip(self.scales, scales, strict=True)
        ]
        cells = rows if all else _collapsed(self._unprefixed(rows))
        why = len(shown) + 2
        kept = len(self.parameters) - len(changed)
        notes = [f"{kept} more parameters keep what they have."] if kept else []
        notes += ["Weight decay and epsilon are multiplied too: table(all=True)."] if shown != used else []
        loss = self.meta.get("initial_loss")
        notes += [f"The loss starts at {loss:.3g}, predicted for cross entropy."] if loss is not None else []
        run = self.meta.get("run")
        if run:
            told = ", ".join(f"{key} {value:.3g}" for key, value in run.items() if isinstance(value, (int, float)))
            notes += [f"A run of this length: {told}; betas {tuple(run['betas'])}."]
        return Grid(["parameter", "init", *shown, "why"], cells, notes=notes, names=(0,), wrapped=(1, why))

    def _unprefixed(self: Plan, rows: list[list[str]]) -> list[list[str]]:  # type: ignore[misc]
        """Reasons without the recipe's name before them, which the summary has said."""
        prefix = f"{self.meta.get('recipe', '')}: "
        return [[*row[:-1], row[-1].removeprefix(prefix)] for row in rows]

    def explain(self: Plan) -> Grid:  # type: ignore[misc]
        """The plan as a table: `print(plan.explain())`."""
        return self.table()

    def summary(self: Plan) -> str:  # type: ignore[misc]
        """What the plan does, in a sentence."""
        drawn = sum(row.init.kind != "keep" or row.init.value != 1.0 for row in self.parameters)
        rates = sum(row.lr != 1.0 for row in self.parameters)
        scaled = sum(not row.folded for row in self.junctions)
        parts = [f"draws {drawn} of {len(self.parameters)} parameters"]
        parts += [f"multiplies the learning rate of {rates}"] if rates else []
        parts += [f"scales {scaled} residual junctions in the forward pass"] if scaled else []
        parts += [f"scales {len(self.scales)} modules"] if self.scales else []
        return f"{self.meta.get('recipe', 'plan')}: {', '.join(parts)}"

    def records(self: Plan) -> list[dict[str, Any]]:  # type: ignore[misc]
        """One flat dict per parameter."""
        return [
            {"name": row.name, "shape": row.shape, "role": row.role, "init": str(row.init)}
            | {name: getattr(row, name) for name in MULTIPLIERS.values()}
            | {"why": row.why}
            for row in self.parameters
        ]

    def plot(self: Plan, path: Any = None) -> Any:  # type: ignore[misc]
        """Standard deviation of the draw and learning-rate multiplier of every parameter, by role."""
        from sigprop.results.figures.plan import plan_figure

        return plan_figure(self, path)


def _changes(row: ParameterPlan) -> bool:
    kept = row.init.kind == "keep" and row.init.value == 1.0
    return not kept or any(getattr(row, name) != 1.0 for name in MULTIPLIERS.values())


def _parameter(row: ParameterPlan, shown: list[str]) -> list[str]:
    return [row.name, str(row.init), *(f"{getattr(row, MULTIPLIERS[key]):.3g}" for key in shown), row.why]


def _junction(row: JunctionPlan, columns: int) -> list[str]:
    where = "" if row.folded else ", as hooks"
    scales = f"{row.skip:.3g} x + {row.branch:.3g} f(x){where}"
    return [f"junction {row.name}", scales, *[""] * columns, row.why]


def _collapsed(rows: list[list[str]]) -> list[list[str]]:
    """Rows that say the same up to numbers, as one: their common name, and their first and last values."""
    groups: dict[Any, list[list[str]]] = {}
    for cells in rows:
        kind = cells[0].startswith(("junction ", "module "))
        groups.setdefault((kind, *(NUMBER.sub("*", cell) for cell in cells[1:])), []).append(cells)
    found = []
    for (*_, why), members in groups.items():
        if len(members) == 1:
            found.append(members[0])
            continue
        values = [_span(column) for column in list(zip(*members, strict=True))[1:-1]]
        told = members[0][-1] if len({cells[-1] for cells in members}) == 1 else why
        found.append([f"{_common([cells[0] for cells in members])} ({len(members)})", *values, told])
    return found


def _common(names: list[str]) -> str:
    """`blocks.*.attention.*.weight` for names that share those parts; `*.weight` where only the end is shared."""
    kind, space, _ = names[0].rpartition(" ")
    split = [name.removeprefix(kind + space).split(".") for name in names]
    return kind + space + _shared(split)


def _shared(split: list[list[str]]) -> str:
    if len({len(parts) for parts in split}) == 1:
        return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*split, strict=True))
    return f"*.{split[0][-1]}" if len({parts[-1] for parts in split}) == 1 else "*"


def _span(values: Sequence[str]) -> str:
    """The value, or the first and the last of them, a shared first word said once."""
    if len(set(values)) == 1:
        return values[0]
    first, last = values[0], values[-1]
    word = first.split(" ")[0]
    return f"{first} … {last.removeprefix(word + ' ')}"
