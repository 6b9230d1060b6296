"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from sigprop.results import Comparison, Profile, SiteRow

SITE_HEADINGS = {
    "variance": "variance",
    "token_correlation": "token corr.",
    "grad_variance": "grad variance",
    "grad_token_correlation": "grad corr.",
}


def profile_table(profile: Profile, title: str = "", most: int = 40) -> Table:
    """One line per site; a long profile is thinned evenly, keeping both ends."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("site", no_wrap=True)
    table.add_column("depth", justify="right")
    for heading in SITE_HEADINGS.values():
        table.add_column(heading, justify="right")
    table.add_column("status")
    for row in thin(profile.sites, most):
        cells = [with_error(row, column) for column in SITE_HEADINGS]
        table.add_row(row.name, str(row.depth), *cells, row.status)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Median and worst error per column, with the standard error of the reference."""
    table = Table(title="prediction against measurement", title_justify="left")
    for heading in ("column", "median error", "worst error", "worst at", "standard error"):
        table.add_column(heading, justify="left" if heading in ("column", "worst at") else "right")
    for row in comparison.summary():
        absolute = "correlation" in str(row["column"]) or row["column"] == "mean"
        show = (lambda x: f"{x:.4f}") if absolute else (lambda x: f"{100 * x:.1f} %")
        table.add_row(
            str(row["column"]),
            show(row["median"]),
            show(row["worst"]),
            str(row["worst_name"]),
            show(row["standard_error"]),
        )
    return table


def thin(rows: Sequence[SiteRow], most: int) -> list[SiteRow]:
    """At most `most` rows, evenly spread, first and last included."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]


def with_error(row: SiteRow, column: str) -> str:
    value, error = getattr(row, column), row.errors.get(column)
    return number(value) if error is None else f"{number(value)} ± {number(error)}"


def number(value: float) -> str:
    """Four significant digits; a dash for a value that does not exist."""
    return "-" if isinstance(value, float) and math.isnan(value) else f"{value:.4g}"
