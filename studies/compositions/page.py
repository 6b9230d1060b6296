"""docs/evidence/compositions.md, written from the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigprop.theory.corrections import NAMES
from studies.compositions.compositions import DEVELOPMENT, HELD_OUT, Composition
from studies.compositions.table import read_table
from studies.stored import fill

PATH = Path("docs/evidence/compositions.md")


def write_page() -> None:
    table = read_table()
    halves = {"development": DEVELOPMENT, "held out": HELD_OUT}
    known = {half: [item for item in items if item.name in table] for half, items in halves.items()}
    parts = {
        half: [*_errors(known[half], table), "", *_summary(known[half], items, table)] for half, items in halves.items()
    }
    parts["answer"] = [f"- {half.capitalize()}: {parts[half][-2]}\n  {parts[half][-1]}" for half in halves]
    fill(PATH, parts | {"each correction alone": _ablation([*DEVELOPMENT, *HELD_OUT], table)})


def _errors(items: Sequence[Composition], table: dict[str, Any]) -> list[str]:
    lines = [
        "| network | variance | gradient | weights | first gradient, predicted / measured | s.e. | outside |",
        "|---" * 7 + "|",
    ]
    for item in items:
        row = table[item.name]["all"]
        cells = [_percent(row[key]) for key in ("variance", "gradient", "weights")]
        cells += [f"{row['first']:.2f}", _percent(row["noise"]), f"{row['outside']} of {row['stated']}"]
        lines.append(f"| {item.name} | {' | '.join(cells)} |")
    return lines


def _summary(known: Sequence[Composition], items: Sequence[Composition], table: dict[str, Any]) -> list[str]:
    rows = [table[item.name]["all"] for item in known]
    stated, outside = (sum(row[key] for row in rows) for key in ("stated", "outside"))
    medians = [statistics.median(row[key] for row in rows) for key in ("variance", "gradient", "weights")]
    return [
        f"{len(known)} of {len(items)} networks judged. Median over networks: variance {_percent(medians[0])}, "
        f"gradient {_percent(medians[1])}, weights {_percent(medians[2])}.",
        f"{outside} of {stated} numbers outside "
        f"({outside / max(stated, 1):.1%}); {sum(row['wrong and exact'] for row in rows)} of them called `exact`.",
    ]


def _ablation(items: Sequence[Composition], table: dict[str, Any]) -> list[str]:
    choices = ["none", *(f"only {name}" for name in NAMES), "all"]
    lines = [f"| network | {' | '.join(choices)} |", "|---" * (len(choices) + 1) + "|"]
    for item in items:
        row = table.get(item.name, {})
        cells = [
            f"{_percent(row[key]['gradient'])}, {_percent(row[key]['weights'])}" if key in row else ""
            for key in choices
        ]
        if row:
            lines.append(f"| {item.name} | {' | '.join(cells)} |")
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.1f} %"
