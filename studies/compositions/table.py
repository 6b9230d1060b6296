"""Theory alone against the witness: with all corrections, with none, with each alone, and with all but each."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import sigprop as sp
from sigprop.results import Profile
from sigprop.theory.corrections import NAMES, correcting
from studies.compositions.compositions import DEVELOPMENT, HELD_OUT, SEEDS, Composition
from studies.compositions.witness import Pairs, read_witness

PATH = Path("docs/data/compositions.json")
NOTHING = 1e-25
"""A variance below this is rounding of float32."""
CHOICES: dict[str, tuple[str, ...]] = {"all": NAMES, "none": ()}
CHOICES |= {f"only {name}": (name,) for name in NAMES}
SLOW = ("experts", "mamba", "resnet", "cnn", "batch")
"""Predicted with all corrections and with none."""


def write_table() -> None:
    witness = read_witness()
    items = sorted((*DEVELOPMENT, *HELD_OUT), key=lambda item: any(name in item.name for name in SLOW))
    rows = {}
    for item in items:
        slow = any(name in item.name for name in SLOW)
        rows[item.name] = row_of(item, witness[item.name], ("all", "none") if slow else tuple(CHOICES))
        text = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        PATH.write_text(f'{{"date": "{date.today()}", "seeds": {SEEDS}, "rows": {{\n{text}\n}}}}\n')


def read_table() -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads(PATH.read_text())["rows"]


def row_of(item: Composition, witness: Pairs, choices: Sequence[str] = tuple(CHOICES)) -> dict[str, Any]:
    """Of one composition, by choice of corrections: how far theory is from the witness."""
    return {choice: judged(predicted(item, CHOICES[choice]), witness) for choice in choices}


def predicted(item: Composition, corrections: Sequence[str] = NAMES) -> Profile:
    with correcting(corrections):
        return sp.predict(item.build, item.inputs(), loss=item.objective(), verify=0)


def judged(profile: Profile, witness: Pairs) -> dict[str, Any]:
    """Median errors, the error of the first gradient, rows that state an error and how many of them are outside."""
    rows = list(compared(profile, witness))
    stated = [row for row in rows if row[5] is not None]
    outside = [row for row in stated if abs(row[2] - row[3]) > row[5] * abs(row[2]) + 4.0 * row[4]]
    gradients = [row for row in rows if row[1] == "grad_variance"]
    return {
        "variance": _median([_error(row) for row in rows if row[1] == "variance"]),
        "gradient": _median([_error(row) for row in gradients]),
        "weights": _median([_error(row) for row in rows if row[1] == "grad_second_moment"]),
        "first": round(gradients[0][2] / gradients[0][3], 4) if gradients else None,
        "noise": _median([row[4] / row[3] for row in gradients]),
        "rows": len(rows),
        "stated": len(stated),
        "outside": len(outside),
        "wrong and exact": sum(row[6] == "exact" for row in outside),
    }


def compared(profile: Profile, witness: Pairs) -> Iterator[tuple[str, str, float, float, float, float | None, str]]:
    """Name, column, predicted, measured, standard error, stated error, status; numbers of rounding are left out."""
    for row in (*profile.sites, *profile.parameters):
        for column, (measured, error) in witness.get(row.name, {}).items():
            value = getattr(row, column, math.nan)
            if measured > NOTHING and value == value:
                yield row.name, column, value, measured, error, row.stated_errors.get(column), row.status


def _error(row: tuple[Any, ...]) -> float:
    return abs(row[2] / row[3] - 1.0)


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
