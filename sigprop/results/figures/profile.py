"""Profiles by depth: variance, token correlation and gradient, one line each, measured ones as points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sigprop.results.blocks import streams
from sigprop.results.figures.panels import COLOURS, blank, finish, label, widen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sigprop.results.profile import Profile, SiteRow

PANELS = (
    ("variance", "forward variance", True),
    ("token_correlation", "token correlation", False),
    ("grad_variance", "gradient variance, last block = 1", True),
    ("grad_token_correlation", "gradient token correlation", False),
)


def blocks(profile: Profile) -> list[SiteRow]:
    """The rows of whole blocks, over all streams; none where the model has no list of layers."""
    return [row for rows in streams(profile.sites).values() for row in rows]


def profile_figure(profiles: Mapping[str, Profile], path: str | Path | None, title: str = "") -> Figure:
    """Four panels over depth, one line per profile; measured profiles (with errors) as points."""
    figure, axes = blank(2, 2)
    for axis, (column, text, logarithmic) in zip(axes, PANELS, strict=True):
        for index, (name, profile) in enumerate(profiles.items()):
            _draw(axis, blocks(profile) or profile.sites, column, name, COLOURS[index % len(COLOURS)])
        label(axis, text, "block" if axis in axes[2:] else "")
        if logarithmic:
            widen(axis)
        else:
            axis.set_ylim(-0.03, 1.03)
    return finish(figure, title or _title(profiles), path, most=4)


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
