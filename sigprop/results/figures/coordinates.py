"""A coordinate check: sizes over width (or depth) on logarithmic axes; what fails is drawn heavy and named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sigprop.results.figures.panels import COLOURS, blank, finish, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sigprop.results.coordinates import CoordinateReport

PANELS = ("activation", "change", "weight", "update")
NAMED = 8
"""Failures that are named; more are drawn heavy only."""


def coordinate_figure(report: CoordinateReport, path: str | Path | None) -> Figure:
    axis = "width" if len(report.widths) > 1 else "depth"
    scales = report.widths if axis == "width" else report.depths
    last = max(item.step for item in report.exponents)
    failing = list(dict.fromkeys(item.name for item in report.failures))
    figure, axes = blank(2, 2)
    for place, quantity in zip(axes, PANELS, strict=True):
        step = {"change": last, "update": 1}.get(quantity, 0)
        for item in report.exponents:
            if (item.quantity, item.axis, item.step) != (quantity, axis, step):
                continue
            if item.passed:
                place.loglog(scales, item.sizes, color="#999999", alpha=0.5, linewidth=1)
                continue
            at = failing.index(item.name)
            style = {"color": COLOURS[at % len(COLOURS)], "linewidth": 2}
            place.loglog(scales, item.sizes, label=item.name if at < NAMED else None, **style)
        place.set_xscale("log")
        place.set_xticks(scales, labels=[str(size) for size in scales])
        place.minorticks_off()
        label(place, f"size of the {quantity}, step {step}", axis if place in axes[2:] else "")
    return finish(figure, report.summary().splitlines()[0], path, most=3)
