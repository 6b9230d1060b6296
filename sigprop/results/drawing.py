"""Figures of profiles by depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from sigprop.results.blocks import streams

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sigprop.results.plan import Plan
    from sigprop.results.profile import Profile, SiteRow

COLOURS = ("#0b5fa5", "#c2571a", "#3a7d44", "#7a4e9c", "#a01f3c", "#555555")
PANELS = (
    ("variance", "forward variance", True),
    ("token_correlation", "token correlation", False),
    ("grad_variance", "gradient variance, last block = 1", True),
    ("grad_token_correlation", "gradient token correlation", False),
)


LEAST_SPAN = 4.0
"""The least factor that a logarithmic axis spans, so that a constant looks constant."""


def blocks(profile: Profile) -> list[SiteRow]:
    """The rows of whole blocks, over all streams; none where the model has no list of layers."""
    return [row for rows in streams(profile.sites).values() for row in rows]


def profile_figure(profiles: Mapping[str, Profile], path: str | Path | None, title: str = "") -> Figure:
    """Four panels over depth, one line per profile; measured profiles (with errors) as points. Saved to a path."""
    figure = Figure(figsize=(10.0, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True).flat
    for axis, (column, label, logarithmic) in zip(axes, PANELS, strict=True):
        for index, (name, profile) in enumerate(profiles.items()):
            _draw(axis, blocks(profile) or profile.sites, column, name, COLOURS[index % len(COLOURS)])
        axis.set_title(label, fontsize=10, loc="left")
        axis.grid(True, color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        if logarithmic:
            _widen(axis)
        else:
            axis.set_ylim(-0.03, 1.03)
    for axis in list(figure.axes)[2:]:
        axis.set_xlabel("block")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), fontsize=8, frameon=False)
    figure.suptitle(title or _title(profiles), fontsize=12, x=0.01, ha="left")
    if path is not None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure


def _draw(axis: Axes, rows: list[SiteRow], column: str, name: str, colour: str) -> None:
    scale = (getattr(rows[-1], column) or 1.0) if column == "grad_variance" else 1.0
    heights = [getattr(row, column) / scale for row in rows]
    spread = [row.errors.get(column, 0.0) / scale for row in rows]
    x = range(1, len(rows) + 1)
    if any(spread):
        axis.errorbar(x, heights, spread, fmt="o", markersize=2.5, color=colour, label=name, linewidth=0.8)
    else:
        axis.plot(x, heights, color=colour, label=name, linewidth=1.6)


def _widen(axis: Axes) -> None:
    """A logarithmic axis that spans at least `LEAST_SPAN`."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if 0 < low < high < LEAST_SPAN * low:
        middle = math.sqrt(low * high)
        axis.set_ylim(middle / math.sqrt(LEAST_SPAN), middle * math.sqrt(LEAST_SPAN))
        ticks = [middle / 1.6, middle, middle * 1.6]
        axis.set_yticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
        axis.minorticks_off()


def _title(profiles: Mapping[str, Profile]) -> str:
    """The model and the batch that the profiles tell of."""
    parts = [
        str(profile.meta[key]) for profile in profiles.values() for key in ("model", "batch") if key in profile.meta
    ]
    return ", ".join(dict.fromkeys(parts))


def plan_figure(plan: Plan, path: str | Path | None) -> Figure:
    """Two panels over the parameters in order: how widely each is drawn, and its learning-rate multiplier."""
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    roles = list(dict.fromkeys(row.role or "parameter" for row in plan.parameters))
    for index, role in enumerate(roles):
        rows = [(i, row) for i, row in enumerate(plan.parameters) if (row.role or "parameter") == role]
        style = {"color": COLOURS[index % len(COLOURS)], "label": role, "markersize": 3, "linestyle": "none"}
        drawn = [(i, row.init.std) for i, row in rows if row.init.std > 0]
        left.plot([i for i, _ in drawn], [std for _, std in drawn], marker="o", **style)
        right.plot([i for i, _ in rows], [row.lr for _, row in rows], marker="o", **style)
    for axis, label in ((left, "standard deviation of the draw"), (right, "learning rate, times")):
        axis.set_yscale("log")
        axis.set_title(label, fontsize=10, loc="left")
        axis.set_xlabel("parameter")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.suptitle(str(plan.meta.get("recipe", "plan")), fontsize=12, x=0.01, ha="left")
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure
