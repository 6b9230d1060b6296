"""`Comparison`: how far one profile is from another, with standard errors and the worst sites."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sigprop.errors import InputError
from sigprop.grid import Grid, Shown, clean, number

if TYPE_CHECKING:
    from pathlib import Path

    from sigprop.results.profile import Profile

NUMBERS = ("median", "worst", "standard_error")
NOTHING = 1e-6
"""A parameter's squared gradient over the largest of its module, below which it is zero but for rounding."""
CORRELATIONS = ("token_correlation", "grad_token_correlation")


@dataclass(frozen=True)
class Difference:
    """One column at one name: absolute difference for correlations and means, relative otherwise."""

    name: str
    column: str
    value: float
    reference: float
    error: float
    standard_error: float


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """All differences of two profiles joined by name."""

    differences: list[Difference]
    only_left: list[str]
    only_right: list[str]

    def column(self, name: str) -> list[Difference]:
        return [item for item in self.differences if item.column == name]

    def median(self, column: str) -> float:
        return statistics.median(abs(item.error) for item in self.column(column))

    def worst(self, column: str, count: int = 1) -> list[Difference]:
        return sorted(self.column(column), key=lambda item: -abs(item.error))[:count]

    def by_column(self) -> list[dict[str, float | str]]:
        """Per column: median and worst error, the worst name, and the median standard error."""
        rows: list[dict[str, float | str]] = []
        for column in dict.fromkeys(item.column for item in self.differences):
            worst = self.worst(column)[0]
            known = [item.standard_error for item in self.column(column) if not math.isnan(item.standard_error)]
            rows.append(
                {
                    "column": column,
                    "median": self.median(column),
                    "worst": abs(worst.error),
                    "worst_name": worst.name,
                    "standard_error": statistics.median(known) if known else math.nan,
                }
            )
        return rows

    def table(self, all: bool = False) -> Grid:
        """Median and worst error per column, relative unless it is a correlation or mean; `all` shows every row."""
        if all:
            rows = [_cells(item) for item in sorted(self.differences, key=lambda item: -abs(item.error))]
            return Grid(["name", "column", "value", "reference", "error", "std. error"], rows, left=[1])
        rows = [
            [
                str(row["column"]),
                *(_shown(str(row["column"]), float(row[key])) for key in NUMBERS),
                str(row["worst_name"]),
            ]
            for row in self.by_column()
        ]
        unknown = [item for item in self.differences if math.isnan(item.standard_error)]
        alone = len(unknown) == len(self.differences)
        notes = ["No standard error: one initialization was measured; seeds=8 gives one."] if alone else []
        return Grid(["column", "median", "worst", "std. error", "worst at"], rows, names=(0, 4), notes=notes)

    def summary(self) -> str:
        """Sentences: what agrees how well, and what stands on one side only."""
        found = {str(row["column"]): row for row in self.by_column()}
        told = [
            f"{column.replace('_', ' ')} to {_shown(column, float(found[column]['median']))} (median)"
            for column in ("variance", "token_correlation", "grad_variance")
            if column in found
        ]
        lines = [f"{len({item.name for item in self.differences})} names compared: {', '.join(told)}"]
        for side, names in (("left", self.only_left), ("right", self.only_right)):
            if names:
                lines.append(
                    f"only on the {side}: {', '.join(map(clean, names[:3]))}{' ...' if len(names) > 3 else ''}"
                )
        return "\n".join(lines)

    def records(self) -> list[dict[str, Any]]:
        return [asdict(item) for item in self.differences]

    def plot(self, path: str | Path | None = None) -> Any:
        """The error of every name in order, one panel per column."""
        from sigprop.results.figures import comparison_figure

        return comparison_figure(self, path)


def _without_rounding(differences: list[Difference]) -> list[Difference]:
    """Without gradients that are nothing on both sides, such as those of key biases, which softmax does not see."""
    column, largest = "grad_second_moment", defaultdict(float)
    for item in differences:
        if item.column == column:
            module = item.name.rpartition(".")[0]
            largest[module] = max(largest[module], item.value, item.reference)
    return [
        item
        for item in differences
        if item.column != column or max(item.value, item.reference) >= NOTHING * largest[item.name.rpartition(".")[0]]
    ]


def _spread(*errors: float | None) -> float:
    """The standard error of a difference; not a number where neither side was repeated."""
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if known else math.nan


def _shown(column: str, value: float) -> str:
    """An absolute error of a correlation or mean, else a relative one; a dash for one that is not known."""
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if column in CORRELATIONS or column == "mean" else f"{100 * value:.1f} %"


def _cells(item: Difference) -> list[str]:
    errors = (_shown(item.column, item.error), _shown(item.column, item.standard_error))
    return [item.name, item.column, number(item.value), number(item.reference), *errors]


def compare_profiles(left: Profile, right: Profile) -> Comparison:
    """Join on the name; `left` is judged against `right` (usually: prediction against measurement)."""
    _require_one_loss(left.meta.get("loss"), right.meta.get("loss"))
    differences: list[Difference] = []
    for left_rows, right_rows in ((left.sites, right.sites), (left.parameters, right.parameters)):
        reference = {row.name: row for row in right_rows}
        for row in left_rows:
            if row.name in reference:
                differences += _row_differences(row, reference[row.name])
    differences = _without_rounding(differences)
    if not differences:
        raise InputError("the two profiles have no site or parameter name in common")
    names_left = {row.name for row in left.sites}
    names_right = {row.name for row in right.sites}
    return Comparison(differences, sorted(names_left - names_right), sorted(names_right - names_left))


def _require_one_loss(left: str | None, right: str | None) -> None:
    """Gradients of two losses have nothing in common; a profile that does not say its loss is compared as it is."""
    if left is not None and right is not None and left != right:
        raise InputError(
            f"the two profiles differentiate different losses: {left!r} and {right!r}; "
            "give predict and measure the same loss="
        )


def _row_differences(row, reference) -> list[Difference]:
    found = []
    for column in type(row).COLUMNS:
        value, target = getattr(row, column), getattr(reference, column)
        if math.isnan(value) or math.isnan(target):
            continue
        scale = 1.0 if column in CORRELATIONS or column == "mean" else target
        if scale == 0.0:
            continue
        spread = _spread(row.errors.get(column), reference.errors.get(column))
        found.append(Difference(row.name, column, value, target, (value - target) / scale, spread / abs(scale)))
    return found
