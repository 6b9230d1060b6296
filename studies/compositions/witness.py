"""What real networks show: averages over initializations, with standard errors, for some rows of every composition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sigprop as sp
from studies.compositions.compositions import DEVELOPMENT, HELD_OUT, SEEDS, Composition

PATH = Path("docs/data/compositions_witness.json")
KEPT = 32
"""Sites and parameters of a composition that are kept, evenly spaced."""
Pairs = dict[str, dict[str, list[float]]]


def write_witness() -> None:
    found = {item.name: witnessed(item) for item in (*DEVELOPMENT, *HELD_OUT)}
    text = ",\n".join(f"{json.dumps(name)}:{json.dumps(rows, separators=(',', ':'))}" for name, rows in found.items())
    PATH.write_text("{\n" + text + "\n}\n")


def read_witness() -> dict[str, Pairs]:
    return json.loads(PATH.read_text())


def witnessed(item: Composition) -> Pairs:
    """By row and column, the average and its standard error."""
    found = sp.measure(item.build(), item.inputs(), item.objective(), build=item.build, seeds=SEEDS, progress=False)
    sites = {row.name: _pairs(row, ("variance", "grad_variance")) for row in _some(found.sites)}
    return sites | {row.name: _pairs(row, ("grad_second_moment",)) for row in _some(found.parameters)}


def _some(rows: Sequence[Any]) -> list[Any]:
    step = max(1, len(rows) / KEPT)
    return [rows[int(number * step)] for number in range(min(KEPT, len(rows)))]


def _pairs(row: Any, columns: Sequence[str]) -> dict[str, list[float]]:
    return {
        column: [float(f"{getattr(row, column):.4g}"), float(f"{row.errors[column]:.2g}")]
        for column in columns
        if getattr(row, column) == getattr(row, column)
    }
