"""Theory alone against the witness: with all corrections, with none, with each alone, and with all but each."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import sigprop as sp
from sigprop.results import Profile
from sigprop.theory.corrections import NAMES
from studies.compositions.compositions import DEVELOPMENT, HELD_OUT, SEEDS, Composition
from studies.compositions.witness import Pairs, read_witness
from studies.corpus.judging import is_rounding

PATH = Path("docs/data/compositions.json")
NOTHING = 1e-25
"""A variance below this is rounding of float32."""
CHOICES: dict[str, tuple[str, ...]] = {"all": NAMES, "none": ()}
CHOICES |= {f"only {name}": (name,) for name in NAMES}
SLOW = ("experts", "mamba", "resnet batch")
"""Predicted with all corrections and with none."""


def write_table(only: str = "") -> None:
    """Judge the networks with such a part in their name anew; the rows of others stay."""
    witness, rows = read_witness(), read_table()
    items = sorted((*DEVELOPMENT, *HELD_OUT), key=lambda item: any(name in item.name for name in SLOW))
    for item in (item for item in items if only in item.name):
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
    return sp.predict(item.build, item.inputs(), loss=item.objective(), verify=0, corrections=corrections)


def judged(profile: Profile, witness: Pairs) -> dict[str, Any]:
    """Median errors, the error of the first gradient, rows that state an error and how many of them are outside."""
    rows = list(compared(profile, witness))
    outside = [row for row in rows if row.is_outside]
    gradients = [row for row in rows if row.column == "grad_variance"]
    return {
        "variance": _median([row.off for row in rows if row.column == "variance"]),
        "gradient": _median([row.off for row in gradients]),
        "weights": _median([row.off for row in rows if row.column == "grad_second_moment"]),
        "first": round(gradients[0].predicted / gradients[0].measured, 4) if gradients else None,
        "noise": _median([row.error / row.measured for row in gradients]),
        "rows": len(rows),
        "stated": sum(row.stated is not None for row in rows),
        "outside": len(outside),
        "wrong and exact": sum(row.status == "exact" for row in outside),
    }


class Compared(NamedTuple):
    """One number of theory beside the witness."""

    column: str
    predicted: float
    measured: float
    error: float
    stated: float | None
    status: str

    @property
    def off(self) -> float:
        return abs(self.predicted / self.measured - 1.0)

    @property
    def is_outside(self) -> bool:
        """Beyond its stated error and four standard errors."""
        if self.stated is None:
            return False
        return abs(self.predicted - self.measured) > self.stated * abs(self.predicted) + 4.0 * self.error


def compared(profile: Profile, witness: Pairs) -> Iterator[Compared]:
    """Every row that both have; numbers of rounding are left out, as what a bias gets below a BatchNorm."""
    largest: dict[str, float] = {}
    for columns in witness.values():
        for column, (measured, _) in columns.items():
            largest[column] = max(largest.get(column, 0.0), measured)
    for row in (*profile.sites, *profile.parameters):
        for column, (measured, error) in witness.get(row.name, {}).items():
            value = getattr(row, column, math.nan)
            if measured > NOTHING and value == value and not is_rounding(measured, value, largest[column]):
                yield Compared(column, value, measured, error, row.stated_errors.get(column), row.status)


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
