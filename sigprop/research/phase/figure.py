"""Figures of criticality: heat maps of chi_J with critical lines and points over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sigprop.compat import Figure
from sigprop.research.phase.diagram import PhaseDiagram
from sigprop.results.files import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {"sigma_w": r"$\sigma_w$", "sigma_b": r"$\sigma_b$", "residual": r"residual $\mu$"}


@dataclass
class Overlay:
    """A curve (`kind` 'line' or 'dotted') or points ('star') over a heat map."""

    x: Sequence[float]
    y: Sequence[float]
    kind: str = "line"


@dataclass
class Panel:
    """One heat map with its overlays; `contour` draws the line chi_J = 1 of another diagram over it."""

    title: str
    diagram: PhaseDiagram
    overlays: list[Overlay] = field(default_factory=list)
    contour: PhaseDiagram | None = None


def phase_figure(panels: Sequence[Panel], path: str | Path, columns: int = 3, limit: float = 2.0) -> Path:
    """Heat maps in one colour scale, white at chi_J = 1, from 1 / limit (blue, ordered) to limit (red, chaotic).

    Points without a value (the signal overflowed) are grey.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(3.5 * columns + 1.0, 3.0 * rows), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).flat)
    mesh = None
    for axis, panel in zip(axes, panels, strict=False):
        mesh = _heat_map(axis, panel, limit)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    assert mesh is not None
    bar = figure.colorbar(mesh, ax=axes, shrink=0.8, extend="both")
    ticks = sorted({1.0, limit, 1 / limit, math.sqrt(limit), 1 / math.sqrt(limit)})
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    bar.ax.minorticks_off()
    bar.set_label(r"$\chi_J$")
    write_figure(Path(path), figure, dpi=110)
    return Path(path)


def _heat_map(axis: Axes, panel: Panel, limit: float):
    diagram = panel.diagram
    from matplotlib.colors import LogNorm

    field_ = np.clip(np.array(diagram.chi, dtype=float), 1e-30, 1e30)
    mesh = axis.pcolormesh(
        diagram.x, diagram.y, field_, cmap="RdBu_r", norm=LogNorm(1 / limit, limit), shading="nearest", rasterized=True
    )
    axis.set_facecolor("#9a9a9a")
    window = (axis.get_xlim(), axis.get_ylim())
    if panel.contour is not None:
        height = np.log(np.clip(np.array(panel.contour.chi, dtype=float), 1e-30, 1e30))
        if np.nanmin(height) < 0 < np.nanmax(height):
            axis.contour(panel.contour.x, panel.contour.y, height, levels=[0.0], colors="black", linewidths=1.4)
    for overlay in panel.overlays:
        if overlay.kind == "star":
            for x, y in zip(overlay.x, overlay.y, strict=True):
                inside = window[0][0] <= x <= window[0][1] and window[1][0] <= y <= window[1][1]
                if inside:
                    axis.plot(x, y, "*", color="black", markersize=11, markerfacecolor="gold", clip_on=False)
        else:
            axis.plot(overlay.x, overlay.y, ":" if overlay.kind == "dotted" else "-", color="black", linewidth=1.4)
    axis.set_xlim(window[0])
    axis.set_ylim(window[1])
    axis.set_xlabel(LABELS.get(diagram.x_name, diagram.x_name))
    axis.set_ylabel(LABELS.get(diagram.y_name, diagram.y_name))
    axis.set_title(panel.title, fontsize=10, loc="left")
    return mesh
