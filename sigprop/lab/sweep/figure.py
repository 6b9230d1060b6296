"""A figure of a sweep: loss against learning rate, one line for every cell, the best rate marked."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from sigprop.lab.sweep.store import curves


def rate_figure(folder: str | Path, path: str | Path) -> None:
    """Mean over seeds, with bars from the lowest seed to the highest; runs that failed are left out."""
    found = curves(folder)
    differing = [key for key in found[0].cell if len({str(item.cell.get(key)) for item in found}) > 1] if found else []
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axis = figure.subplots()
    for item in found:
        points = sorted((rate, losses) for rate, losses in item.losses.items() if max(losses) < math.inf)
        rates, means = [rate for rate, _ in points], [sum(losses) / len(losses) for _, losses in points]
        below = [mean - min(losses) for mean, (_, losses) in zip(means, points, strict=True)]
        above = [max(losses) - mean for mean, (_, losses) in zip(means, points, strict=True)]
        label = ", ".join(f"{key.split('.', 1)[1]} {item.cell.get(key)}" for key in differing)
        line = axis.errorbar(rates, means, (below, above), marker=".", capsize=2, label=label or None)
        if means:
            best = min(range(len(means)), key=means.__getitem__)
            axis.plot(rates[best], means[best], "o", fillstyle="none", markersize=10, color=line[0].get_color())
    axis.set_xscale("log", base=2)
    axis.set(xlabel="learning rate", ylabel="loss of the last tenth", title=str(Path(folder).name))
    if differing:
        figure.legend(loc="outside right upper", fontsize=7)
    figure.savefig(path, dpi=150)
