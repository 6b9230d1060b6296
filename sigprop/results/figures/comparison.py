"""A comparison: the error of every name in order, with two standard errors where they are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from sigprop.results.figures.panels import COLOURS, blank, finish, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sigprop.results.comparison import Comparison

COLUMNS = {
    "variance": "variance, relative error",
    "token_correlation": "token correlation, difference",
    "grad_variance": "gradient variance, relative error",
    "grad_second_moment": "gradient of parameters, relative error",
}
LEAST = 0.1
"""The least error that an axis spans to both sides, so that agreement looks like it."""


def comparison_figure(comparison: Comparison, path: str | Path | None) -> Figure:
    shown = {column: text for column, text in COLUMNS.items() if comparison.column(column)}
    figure, axes = blank(math.ceil(len(shown) / 2), min(2, len(shown)))
    for axis, (column, text) in zip(axes, shown.items(), strict=False):
        found = comparison.column(column)
        errors = [item.error for item in found]
        spread = [0.0 if math.isnan(item.standard_error) else 2 * item.standard_error for item in found]
        axis.axhline(0.0, color="#888888", linewidth=0.8)
        axis.errorbar(range(len(found)), errors, spread, fmt="o", markersize=3, color=COLOURS[0], linewidth=0.8)
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, -LEAST), max(high, LEAST))
        label(axis, text, "in the order of execution")
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    return finish(figure, comparison.summary().splitlines()[0], path)
