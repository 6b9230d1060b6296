"""A plan over its parameters in order: how widely each is drawn, and its learning-rate multiplier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sigprop.results.figures.panels import COLOURS, blank, finish, label, widen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sigprop.results.plan import Plan


def plan_figure(plan: Plan, path: str | Path | None) -> Figure:
    figure, (left, right) = blank(1, 2, height=4.0)
    roles = list(dict.fromkeys(row.role or "parameter" for row in plan.parameters))
    for index, role in enumerate(roles):
        rows = [(i, row) for i, row in enumerate(plan.parameters) if (row.role or "parameter") == role]
        style = {"color": COLOURS[index % len(COLOURS)], "label": role, "markersize": 3, "linestyle": "none"}
        drawn = [(i, row.init.std) for i, row in rows if row.init.std > 0]
        left.plot([i for i, _ in drawn], [std for _, std in drawn], marker="o", **style)
        right.plot([i for i, _ in rows], [row.lr for _, row in rows], marker="o", **style)
    for axis, text in ((left, "standard deviation of the draw"), (right, "learning rate, times")):
        label(axis, text, "parameter, in order")
        widen(axis)
    return finish(figure, str(plan.meta.get("recipe", "plan")), path)
