"""A figure of a sweep: loss against learning rate, and, where sizes differ, the best rate against width or depth."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigprop.research.lab.sweep.store import BestRate, RateCurve, curves, differing
from sigprop.results.files import write_figure

SIZES = ("model.width", "model.depth")


def rate_figure(folder: str | Path, path: str | Path) -> None:
    """Losses: mean over seeds, bars from the lowest seed to the highest, the best one circled; failed runs not drawn.

    Best rates: bars from the lowest best rate of a seed to the highest.
    """
    found = curves(folder)
    varied = differing([curve.cell for curve in found])
    sizes = [key for key in SIZES if key in varied]
    figure = Figure(figsize=(7.5 + 4.5 * len(sizes), 4.5), layout="constrained")
    axes = figure.subplots(1, 1 + len(sizes), squeeze=False)[0]
    for curve in found:
        _losses(axes[0], curve, _label(curve.cell, varied))
    axes[0].set_xscale("log", base=2)
    axes[0].set(xlabel="learning rate", ylabel="loss of the last tenth", title=str(Path(folder).name))
    for axis, key in zip(axes[1:], sizes, strict=True):
        _optima(axis, [curve.best() for curve in found], key, [name for name in varied if name != key])
    if varied:
        axes[0].legend(fontsize=7)
    write_figure(Path(path), figure)


def _losses(axis: Axes, curve: RateCurve, label: str) -> None:
    points = sorted((rate, losses) for rate, losses in curve.losses.items() if max(losses) < math.inf)
    rates, means = [rate for rate, _ in points], [sum(losses) / len(losses) for _, losses in points]
    below = [mean - min(losses) for mean, (_, losses) in zip(means, points, strict=True)]
    above = [max(losses) - mean for mean, (_, losses) in zip(means, points, strict=True)]
    line = axis.errorbar(rates, means, (below, above), marker=".", capsize=2, label=label or None)
    if means:
        best = min(range(len(means)), key=means.__getitem__)
        axis.plot(rates[best], means[best], "o", fillstyle="none", markersize=10, color=line[0].get_color())


def _optima(axis: Axes, found: list[BestRate], key: str, others: list[str]) -> None:
    """One line for every combination of the other settings."""
    lines: dict[str, list[BestRate]] = defaultdict(list)
    for best in found:
        lines[json.dumps({name: best.cell.get(name) for name in others})].append(best)
    for cell, points in lines.items():
        points.sort(key=lambda best: best.cell[key])
        rates = [best.rate for best in points]
        bars = ([best.rate - best.low for best in points], [best.high - best.rate for best in points])
        label = _label(json.loads(cell), others)
        axis.errorbar([best.cell[key] for best in points], rates, bars, marker="o", capsize=3, label=label or None)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set(xlabel=key.split(".", 1)[1], ylabel="best learning rate")
    if others:
        axis.legend(fontsize=7)


def _label(cell: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key.split('.', 1)[1]} {cell.get(key)}" for key in keys)
