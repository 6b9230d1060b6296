"""Flat dictionaries of numbers whose keys do not grow with depth: repeated blocks are folded.

Names that differ only in numbers (`h.0.mlp`, `h.1.mlp`, ...) are one family `h.*.mlp` with three numbers per column:
`first`, `median` and `worst`. Worst is what a person would look at first: not finite, or farthest from the
median, or the largest (correlation, score), or the smallest (entropy).
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass

from sigprop.monitoring.history import Rows, Sample

NUMBER = re.compile(r"(?<![A-Za-z_])\d+")
LARGEST_IS_WORST = ("correlation", "score", "weight", "overflow", "underflow", "headroom", "unmoved", "against")
TRACKED = (
    "variance",
    "token_correlation",
    "grad_variance",
    "branch_ratio",
    "entropy",
    "largest_score",
    "update_ratio",
    "grad_second_moment",
)
"""Columns for trackers, with what a narrow format loses; the others are in the history, and in `everything`."""


@dataclass
class Scalars:
    """`values` for trackers; `names` says, for keys that end in `worst`, which site or parameter that is."""

    values: dict[str, float]
    names: dict[str, str]


def family(name: str) -> str:
    return NUMBER.sub("*", name)


def folded(sample: Sample) -> Scalars:
    """Bounded scalars of one sample; `everything` has them unfolded."""
    found = Scalars(_whole(sample), {})
    for rows in (sample.sites, sample.parameters):
        families: dict[str, list[str]] = {}
        for name in rows:
            families.setdefault(family(name), []).append(name)
        for pattern, members in families.items():
            _fold(found, pattern, members, rows)
    return found


def everything(sample: Sample) -> dict[str, float]:
    """One scalar per site or parameter and column."""
    values = _whole(sample)
    for rows in (sample.sites, sample.parameters):
        values |= {f"{column}/{name}": value for name, row in rows.items() for column, value in row.items()}
    return values


def _whole(sample: Sample) -> dict[str, float]:
    values = {"run/loss": sample.loss} if not math.isnan(sample.loss) else {}
    values |= {f"run/{key}": value for key, value in sample.run.items()}
    return values | {f"{key}/group.{name}": row[key] for name, row in sample.groups.items() for key in row}


def _fold(found: Scalars, pattern: str, members: list[str], rows: Rows) -> None:
    for column in dict.fromkeys(key for name in members for key in rows[name]):
        if column not in TRACKED and not column.endswith(("underflow", "overflow")):
            continue
        holders = [name for name in members if column in rows[name]]
        values = [rows[name][column] for name in holders]
        if len(members) == 1:
            found.values[f"{column}/{pattern}"] = values[0]
            continue
        place = worst(column, values)
        key = f"{column}/{pattern}"
        found.values[f"{key}/first"] = values[0]
        found.values[f"{key}/median"] = statistics.median(values)
        found.values[f"{key}/worst"] = values[place]
        found.names[f"{key}/worst"] = holders[place]


def worst(column: str, values: list[float]) -> int:
    """The place of the value to look at first."""
    for place, value in enumerate(values):
        if not math.isfinite(value):
            return place
    if column == "entropy":
        return values.index(min(values))
    if any(part in column for part in LARGEST_IS_WORST):
        return values.index(max(values))
    middle = _logarithm(statistics.median(values))
    distances = [abs(_logarithm(value) - middle) for value in values]
    return distances.index(max(distances))


def _logarithm(value: float) -> float:
    """Of the size; a ratio of two values may leave the range of a float, a difference of logarithms cannot."""
    return math.log(max(abs(value), 1e-300))
