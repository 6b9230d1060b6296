"""Questions to the results of a sweep: a table in memory, made from the files whenever it is asked for."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigprop.errors import InputError
from sigprop.research.lab.sweep.folder import ResultFolder
from sigprop.results.files import write_figure

RATE, SEED = "train.lr", "train.seed"


def rows_of(folder: str | Path) -> list[dict[str, Any]]:
    """One flat row per trial: `section.name` for settings, plain names for results."""
    if not Path(folder).is_dir():
        raise InputError(f"{folder} has no results: there is no such folder")
    rows = []
    for item in ResultFolder(folder).results():
        row = {f"{section}.{name}": value for section, given in item["trial"].items() for name, value in given.items()}
        rows.append(row | {key: value for key, value in item["result"].items() if not isinstance(value, list)})
    return rows


def query(folder: str | Path, question: str) -> list[dict[str, Any]]:
    """Answer an SQL question to the table `trials`, such as `select "train.lr", last from trials order by last`."""
    rows = rows_of(folder)
    if not rows:
        raise InputError(f"{folder} has no results")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with sqlite3.connect(":memory:") as table:
        table.row_factory = sqlite3.Row
        table.execute(f"create table trials ({', '.join(_quoted(name) for name in columns)})")
        marks = ", ".join("?" * len(columns))
        values = [[_plain(row.get(name)) for name in columns] for row in rows]
        table.executemany(f"insert into trials values ({marks})", values)
        try:
            return [dict(row) for row in table.execute(question)]
        except sqlite3.Error as error:
            raise InputError(f"the question was not understood: {error}. Columns: {', '.join(columns)}") from error


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, float, str)) else json.dumps(value)


@dataclass(frozen=True)
class RateCurve:
    """Losses by learning rate and seed, of one combination of all other settings; failed runs are infinite."""

    cell: dict[str, Any]
    by_rate: dict[float, dict[int, float]]

    @property
    def losses(self) -> dict[float, list[float]]:
        """Over seeds, by learning rate."""
        return {rate: list(found.values()) for rate, found in self.by_rate.items()}

    def best(self) -> BestRate:
        """The rate with the lowest mean loss, and those of the single seeds."""
        means = {rate: sum(losses) / len(losses) for rate, losses in self.losses.items()}
        rate = min(means, key=means.__getitem__)
        mean, losses = means[rate], self.losses[rate]
        squares = sum((loss - mean) ** 2 for loss in losses) if mean < math.inf else 0.0
        own = [self._best_of(seed) for seed in self.by_rate[rate]]
        spread = math.sqrt(squares / max(len(losses) - 1, 1))
        at_edge = len(means) > 1 and rate in (min(means), max(means))
        return BestRate(self.cell, rate, min(own), max(own), mean, spread, len(losses), at_edge)

    def _best_of(self, seed: int) -> float:
        """The best rate of one seed."""
        return min(self.by_rate, key=lambda rate: self.by_rate[rate].get(seed, math.inf))


@dataclass(frozen=True)
class BestRate:
    """The best learning rate of one cell: mean loss over seeds, its spread, and whether the grid may end too early.

    `low` and `high`: the lowest and highest of the single seeds' best rates.
    """

    cell: dict[str, Any]
    rate: float
    low: float
    high: float
    loss: float
    spread: float
    seeds: int
    at_edge: bool


def curves(folder: str | Path) -> list[RateCurve]:
    """One curve for every cell of the sweep."""
    cells: dict[str, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of(folder):
        settings = {key: value for key, value in row.items() if "." in key and key not in (RATE, SEED)}
        loss = row["last"] if row["last"] is not None else math.inf
        cells[json.dumps(settings, sort_keys=True)][row.get(RATE, math.nan)][row.get(SEED, 0)] = loss
    return [RateCurve(json.loads(cell), dict(rates)) for cell, rates in cells.items()]


def best_rates(folder: str | Path) -> list[BestRate]:
    """For every cell, the rate with the lowest mean loss; cells in the order of their settings."""
    return sorted((curve.best() for curve in curves(folder)), key=lambda best: _order(best.cell))


def differing(cells: list[dict[str, Any]]) -> list[str]:
    """Settings that are not the same in all cells."""
    keys = dict.fromkeys(key for cell in cells for key in cell)
    return [key for key in keys if len({str(cell.get(key)) for cell in cells}) > 1]


def _order(cell: dict[str, Any]) -> list[tuple[str, bool, float, str]]:
    """Numbers by size, the rest by name."""
    return [
        (key, isinstance(value, str), value if isinstance(value, (int, float)) else 0.0, str(value))
        for key, value in sorted(cell.items())
    ]


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
