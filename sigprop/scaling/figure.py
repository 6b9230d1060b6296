"""A figure of a coordinate check: the change of every site over width, one panel per quantity."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from sigprop.results.coordinates import CoordinateReport

PANELS = ("activation", "change", "weight", "update")


def coordinate_figure(report: CoordinateReport, path: str | Path) -> None:
    """Sizes over width (or depth) on logarithmic axes; failing lines are drawn heavy and named."""
    axis = "width" if len(report.widths) > 1 else "depth"
    scales = report.widths if axis == "width" else report.depths
    last = max(item.step for item in report.exponents)
    figure = Figure(figsize=(4 * len(PANELS), 4), layout="constrained")
    for place, quantity in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        step = {"change": last, "update": 1}.get(quantity, 0)
        for item in report.exponents:
            if (item.quantity, item.axis, item.step) != (quantity, axis, step):
                continue
            style = {"alpha": 0.4, "linewidth": 1} if item.passed else {"linewidth": 2.5, "label": item.name}
            place.loglog(scales, item.sizes, **style)
        place.set(title=f"{quantity}, step {step}", xlabel=axis)
        if place.get_legend_handles_labels()[0]:
            place.legend(fontsize=6)
    figure.suptitle("coordinate check: " + ("pass" if report.passed else "fail"))
    figure.savefig(path)
