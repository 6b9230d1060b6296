"""Figures of results: profiles by depth, comparisons, reports, coordinate checks, plans.

Each function returns the figure, and saves it when a path is given; what all share comes first.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.compat import Figure as PlainFigure
from sigprop.results.files import write_figure
from sigprop.results.profile import streams
from sigprop.results.report_text import LINES, LOGARITHMIC

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sigprop.results.comparison import Comparison
    from sigprop.results.coordinates import CoordinateReport
    from sigprop.results.profile import Profile, SiteRow
    from sigprop.results.report import Report

COLOURS = ("#0b5fa5", "#c2571a", "#3a7d44", "#7a4e9c", "#a01f3c", "#555555", "#c9a227", "#2a9d8f")
TITLE = 100
"""Characters in a line of the title."""
LEAST_SPAN = 4.0
"""The least factor that a logarithmic axis spans, so that a constant looks constant."""


class Figure(PlainFigure):
    """A figure that shows itself in a notebook, without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def blank(panels: int, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels in reading order, two in a row."""
    rows, columns = max(1, math.ceil(panels / 2)), min(2, max(1, panels))
    figure = Figure(figsize=(5.0 * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes[:panels]


def label(axis: Axes, title: str, below: str = "") -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(below)
    axis.grid(True, color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def widen(axis: Axes) -> None:
    """A logarithmic axis that spans at least `LEAST_SPAN`."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if 0 < low < high < LEAST_SPAN * low:
        middle = math.sqrt(low * high)
        axis.set_ylim(middle / math.sqrt(LEAST_SPAN), middle * math.sqrt(LEAST_SPAN))
        ticks = [middle / 1.6, middle, middle * 1.6]
        axis.set_yticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
        axis.minorticks_off()


def finish(figure: Figure, title: str, path: str | Path | None, most: int = 6) -> Figure:
    """The legend of all panels below them, the title, and the file."""
    found = {
        name: handle for axis in figure.axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if found:
        style = {"ncols": min(most, len(found)), "fontsize": 8, "frameon": False}
        figure.legend(list(found.values()), list(found), loc="outside lower center", **style)
    figure.suptitle(textwrap.fill(title, TITLE), fontsize=12, x=0.01, ha="left")
    if path is not None:
        write_figure(Path(path), figure)
    return figure


PROFILE_PANELS = (
    ("variance", "forward variance", True),
    ("token_correlation", "token correlation", False),
    ("grad_variance", "gradient variance, last block = 1", True),
    ("grad_token_correlation", "gradient token correlation", False),
)


def blocks(profile: Profile) -> list[SiteRow]:
    """The rows of whole blocks, over all streams; none where the model has no list of layers."""
    return [row for rows in streams(profile.sites).values() for row in rows]


def profile_figure(profiles: Mapping[str, Profile], path: str | Path | None) -> Figure:
    """Four panels over depth, one line per profile; measured profiles (with errors) as points."""
    figure, axes = blank(4)
    for axis, (column, text, logarithmic) in zip(axes, PROFILE_PANELS, strict=True):
        for index, (name, profile) in enumerate(profiles.items()):
            _draw(axis, blocks(profile) or profile.sites, column, name, COLOURS[index % len(COLOURS)])
        label(axis, text, "block" if axis in axes[2:] else "")
        if logarithmic:
            widen(axis)
        else:
            axis.set_ylim(-0.03, 1.03)
    return finish(figure, _title(profiles), path, most=4)


def _draw(axis: Axes, rows: list[SiteRow], column: str, name: str, colour: str) -> None:
    scale = (getattr(rows[-1], column) or 1.0) if column == "grad_variance" else 1.0
    heights = [getattr(row, column) / scale for row in rows]
    spread = [row.errors.get(column, 0.0) / scale for row in rows]
    x = range(1, len(rows) + 1)
    if any(spread):
        axis.errorbar(x, heights, spread, fmt="o", markersize=2.5, color=colour, label=name, linewidth=0.8)
    else:
        axis.plot(x, heights, color=colour, label=name, linewidth=1.6)


def _title(profiles: Mapping[str, Profile]) -> str:
    """The model and the batch that the profiles tell of."""
    parts = [
        str(profile.meta[key]) for profile in profiles.values() for key in ("model", "batch") if key in profile.meta
    ]
    return ", ".join(dict.fromkeys(parts))


COMPARED = {
    "variance": "variance, relative error",
    "token_correlation": "token correlation, difference",
    "grad_variance": "gradient variance, relative error",
    "grad_second_moment": "gradient of parameters, relative error",
}
LEAST = 0.1
"""The least error that an axis spans to both sides, so that agreement looks like it."""


def comparison_figure(comparison: Comparison, path: str | Path | None) -> Figure:
    shown = {column: text for column, text in COMPARED.items() if comparison.column(column)}
    figure, axes = blank(len(shown))
    for axis, (column, text) in zip(axes, shown.items(), strict=True):
        found = comparison.column(column)
        errors = [item.error for item in found]
        spread = [0.0 if math.isnan(item.standard_error) else 2 * item.standard_error for item in found]
        axis.axhline(0.0, color="#888888", linewidth=0.8)
        axis.errorbar(range(len(found)), errors, spread, fmt="o", markersize=3, color=COLOURS[0], linewidth=0.8)
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, -LEAST), max(high, LEAST))
        label(axis, text, "in the order of execution")
    return finish(figure, comparison.summary().splitlines()[0], path)


KINDS = {"predicted": "predicted", "measured": "measured", "prescribed": "predicted with the fix"}


def report_figure(report: Report, path: str | Path | None) -> Figure:
    shown = [column for column in LINES if any(curve.column == column for curve in report.curves)]
    figure, axes = blank(len(shown))
    for axis, column in zip(axes, shown, strict=True):
        for colour, (kind, name) in zip(COLOURS, KINDS.items(), strict=False):
            for curve in report.curves:
                if (curve.column, curve.kind) == (column, kind):
                    style = {"marker": "o", "linestyle": "none", "markersize": 3} if kind == "measured" else {}
                    axis.plot(curve.depth, curve.values, color=colour, label=name, **style)
        label(axis, LINES[column], "depth")
        if column in LOGARITHMIC:
            widen(axis)
    return finish(figure, report.summary(), path)


SCALED = ("activation", "change", "weight", "update")
NAMED = 8
"""Failures that are named; more are drawn heavy only."""


def coordinate_figure(report: CoordinateReport, path: str | Path | None) -> Figure:
    axis = "width" if len(report.widths) > 1 else "depth"
    scales = report.widths if axis == "width" else report.depths
    last = max(item.step for item in report.exponents)
    failing = list(dict.fromkeys(item.name for item in report.failures))
    figure, axes = blank(4)
    for place, quantity in zip(axes, SCALED, strict=True):
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


def plan_figure(plan: Any, path: str | Path | None) -> Figure:
    figure, (left, right) = blank(2, height=4.0)
    roles = list(dict.fromkeys(row.role or "parameter" for row in plan.parameters))
    for index, role in enumerate(roles):
        rows = [(i, row) for i, row in enumerate(plan.parameters) if (row.role or "parameter") == role]
        style = {"color": COLOURS[index % len(COLOURS)], "label": role, "markersize": 3, "linestyle": "none"}
        random = [(i, row.init.std) for i, row in rows if row.init.std > 0]
        left.plot([i for i, _ in random], [std for _, std in random], marker="o", **style)
        right.plot([i for i, _ in rows], [row.lr for _, row in rows], marker="o", **style)
    for axis, text in ((left, "standard deviation at initialization"), (right, "learning rate, times")):
        label(axis, text, "parameter, in order")
        widen(axis)
    return finish(figure, str(plan.meta.get("recipe", "plan")), path)
