"""Figures of profiles by depth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from sigprop.results import Profile, SiteRow

COLOURS = ("#0b5fa5", "#c2571a", "#3a7d44", "#7a4e9c", "#a01f3c", "#555555")
PANELS = (
    ("variance", "forward variance", True),
    ("token_correlation", "token correlation", False),
    ("grad_variance", "gradient variance, last block = 1", True),
    ("grad_token_correlation", "gradient token correlation", False),
)


def blocks(profile: Profile) -> list[SiteRow]:
    """The rows of whole blocks: names that end in `blocks.<number>` or a like list of layers."""
    return [row for row in profile.sites if re.fullmatch(r"(.*\.)?[a-z_]+\.\d+", row.name)]


def profile_figure(profiles: Mapping[str, Profile], path: str | Path, title: str = "") -> Path:
    """Four panels over depth, one line per profile; measured profiles (with errors) as points."""
    figure = Figure(figsize=(10.0, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True).flat
    for axis, (column, label, logarithmic) in zip(axes, PANELS, strict=True):
        for index, (name, profile) in enumerate(profiles.items()):
            rows = blocks(profile) or profile.sites
            scale = getattr(rows[-1], column) if column == "grad_variance" else 1.0
            heights = [getattr(row, column) / (scale or 1.0) for row in rows]
            spread = [row.errors.get(column, 0.0) / (scale or 1.0) for row in rows]
            colour, x = COLOURS[index % len(COLOURS)], range(1, len(rows) + 1)
            if any(spread):
                axis.errorbar(x, heights, spread, fmt="o", markersize=2.5, color=colour, label=name, linewidth=0.8)
            else:
                axis.plot(x, heights, color=colour, label=name, linewidth=1.6)
        axis.set_title(label, fontsize=10, loc="left")
        axis.set_yscale("log" if logarithmic else "linear")
        axis.grid(True, color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        if not logarithmic:
            axis.set_ylim(-0.03, 1.03)
    for axis in list(figure.axes)[2:]:
        axis.set_xlabel("block")
    figure.axes[0].legend(fontsize=8, frameon=False)
    if title:
        figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
