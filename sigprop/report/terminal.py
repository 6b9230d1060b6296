"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from rich import box
from rich.table import Table

from sigprop.results import Comparison, Profile, SiteRow

Row = TypeVar("Row")
SITE_HEADINGS = {
    "variance": "variance",
    "token_correlation": "corr.",
    "grad_variance": "grad var.",
    "grad_token_correlation": "grad corr.",
}


def profile_table(profile: Profile, title: str = "", most: int = 40) -> Table:
    """One line per site; a long profile is thinned evenly, keeping both ends."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("site", overflow="fold")
    table.add_column("depth", justify="right", no_wrap=True)
    for heading in SITE_HEADINGS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    predicted = any(row.status != "measured" for row in profile.sites)
    if predicted:
        table.add_column("status", no_wrap=True)
    for row in thin(profile.sites, most):
        cells = [with_error(row, column) for column in SITE_HEADINGS]
        table.add_row(row.name, str(row.depth), *cells, *([row.status] if predicted else []))
    return table


def extras_table(profile: Profile, most: int = 40) -> Table | None:
    """What was asked for besides the moments (attention scores, losses of low-precision formats), where not zero."""
    found = [(row.name, key, value) for row in profile.sites for key, value in row.extras.items() if value]
    if not any(row.extras for row in profile.sites):
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("site", overflow="fold")
    table.add_column("besides", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for name, key, value in thin(found, most):
        table.add_row(name, key.replace("_", " "), number(value))
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Median and worst error per column, with the standard error of the reference."""
    table = Table(title="prediction against measurement", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("column", no_wrap=True)
    for heading in ("median", "worst", "std. error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("worst at", overflow="fold")
    for row in comparison.summary():
        absolute = "correlation" in str(row["column"]) or row["column"] == "mean"
        show = (lambda x: f"{x:.4f}") if absolute else (lambda x: f"{100 * x:.1f} %")
        numbers = (show(row[key]) for key in ("median", "worst", "standard_error"))
        table.add_row(str(row["column"]), *numbers, str(row["worst_name"]))
    return table


def thin(rows: Sequence[Row], most: int) -> list[Row]:
    """At most `most` rows, evenly spread, first and last included."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]


def with_error(row: SiteRow, column: str) -> str:
    """A value and, over initializations, its standard error: in percent, or absolute for a correlation."""
    value, error = getattr(row, column), row.errors.get(column)
    if error is None or not math.isfinite(error):
        return number(value)
    if "correlation" in column:
        return f"{value:.3f}±{error:.3f}"
    return f"{value:.3g}±{100 * error / abs(value):.0f}%" if value else f"{value:.3g}"


def number(value: float) -> str:
    """Four significant digits; a dash for a value that does not exist."""
    return "-" if isinstance(value, float) and math.isnan(value) else f"{value:.4g}"
