"""Predicted rows against what a witness saw: errors of rows, and when a model is right."""

from __future__ import annotations

import math
import statistics
from typing import Any

from sigprop import Profile
from studies.corpus.witness import Summary

NEGLIGIBLE, NOTHING = 1e-9, 0.1
UNDERFLOW = 1e-70
"""Mean squares of numbers that single precision, in which the witness runs, does not hold."""
MISSING = "no number"


def is_rounding(mean: float, predicted: float, largest: float) -> bool:
    """Whether a measured number is next to nothing beside the largest of its kind and the predicted one says zero:
    below a tenth of it. Small numbers that are predicted are judged: what a layer scale of 1e-6 leaves is a number."""
    if mean < UNDERFLOW and abs(predicted) < UNDERFLOW:
        return True
    return mean <= NEGLIGIBLE * largest and abs(predicted) <= NOTHING * mean


def compared(profile: Profile, table: Summary) -> list[list[Any]]:
    found = []
    largest: dict[str, float] = {}
    for row in table.values():
        for column, (mean, _) in row.items():
            largest[column] = max(largest.get(column, 0.0), mean)
    named = [(row.name, row) for row in profile.sites] + [(f"parameter {row.name}", row) for row in profile.parameters]
    for name, row in named:
        for column, (mean, error) in table.get(name, {}).items():
            value = getattr(row, column)
            if not math.isfinite(mean) or is_rounding(mean, value, largest[column]):
                continue
            if mean == 0.0 or math.isnan(value):
                status = MISSING if math.isnan(value) else row.status
                found.append([name, column, None, None, status, None])
                continue
            spread = math.hypot(error, row.errors.get(column, 0.0)) / mean
            numbers = [round(x, 5) for x in ((value - mean) / mean, spread, error / mean)]
            found.append([name, column, numbers[0], numbers[1], row.status, numbers[2]])
    return found


def errors_of(row: dict[str, Any], column: str) -> tuple[float, float]:
    """Median of the errors, and the worst less two standard errors."""
    found = [item for item in row.get("rows", []) if item[1] == column]
    if not found:
        return math.nan, math.nan
    sizes = [abs(item[2]) if item[2] is not None else math.inf for item in found]
    less = [max(size - 2 * (item[3] or 0.0), 0.0) for size, item in zip(sizes, found, strict=True)]
    return statistics.median(sizes), max(less)


def confident_and_wrong(row: dict[str, Any]) -> list[list[Any]]:
    """Rows marked better than `assumed`, off by more than a fifth and five standard errors of both together."""
    found = [item for item in row.get("rows", []) if item[4] not in ("assumed", MISSING)]
    return [item for item in found if item[2] is None or abs(item[2]) > max(0.2, 5 * item[3])]


def is_right(row: dict[str, Any], column: str) -> bool:
    found = [item for item in row.get("rows", []) if item[1] == column]
    if not found:
        return "rows" in row
    less = [math.inf if item[2] is None else max(abs(item[2]) - 2 * item[3], 0.0) for item in found]
    return statistics.median(less) <= 0.10 and max(less) <= 0.20
