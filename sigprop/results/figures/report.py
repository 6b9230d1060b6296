"""A report along the depth: what was measured, predicted, and predicted under the cure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from sigprop.results.figures.panels import COLOURS, blank, finish, label, widen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sigprop.results.report import Report

COLUMNS = {
    "variance": "stream variance",
    "grad_variance": "gradient variance",
    "token_correlation": "token correlation",
    "entropy": "attention entropy",
}
LOGARITHMIC = ("variance", "grad_variance")
KINDS = {"predicted": "predicted", "measured": "measured", "prescribed": "predicted with the cure"}


def report_figure(report: Report, path: str | Path | None) -> Figure:
    shown = [column for column in COLUMNS if any(curve.column == column for curve in report.curves)]
    figure, axes = blank(max(1, math.ceil(len(shown) / 2)), min(2, max(1, len(shown))))
    for axis, column in zip(axes, shown, strict=False):
        for colour, (kind, name) in zip(COLOURS, KINDS.items(), strict=False):
            for curve in report.curves:
                if (curve.column, curve.kind) == (column, kind):
                    style = {"marker": "o", "linestyle": "none", "markersize": 3} if kind == "measured" else {}
                    axis.plot(curve.depth, curve.values, color=colour, label=name, **style)
        label(axis, COLUMNS[column], "depth")
        if column in LOGARITHMIC:
            widen(axis)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    return finish(figure, report.summary(), path)
