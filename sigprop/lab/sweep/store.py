"""Questions to the results of a sweep: a table in memory, made from the files whenever it is asked for."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigprop.errors import InputError
from sigprop.lab.sweep.folder import ResultFolder

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
class Curve:
    """Losses over seeds by learning rate, of one combination of all other settings; failed runs are infinite."""

    cell: dict[str, Any]
    losses: dict[float, list[float]]


def curves(folder: str | Path) -> list[Curve]:
    """One curve for every cell of the sweep."""
    cells: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(folder):
        settings = {key: value for key, value in row.items() if "." in key and key not in (RATE, SEED)}
        loss = row["last"] if row["last"] is not None else math.inf
        cells[json.dumps(settings, sort_keys=True)][row.get(RATE, math.nan)].append(loss)
    return [Curve(json.loads(cell), dict(rates)) for cell, rates in cells.items()]


@dataclass(frozen=True)
class BestRate:
    """The best learning rate of one cell: mean loss over seeds, its spread, and whether the grid may end too early."""

    cell: dict[str, Any]
    rate: float
    loss: float
    spread: float
    seeds: int
    at_edge: bool


def best_rates(folder: str | Path) -> list[BestRate]:
    """For every cell, the rate with the lowest mean loss."""
    return [_best(curve.cell, curve.losses) for curve in curves(folder)]


def _best(cell: dict[str, Any], rates: dict[float, list[float]]) -> BestRate:
    means = {rate: sum(losses) / len(losses) for rate, losses in rates.items()}
    rate = min(means, key=means.__getitem__)
    losses, mean = rates[rate], means[rate]
    spread = math.sqrt(sum((loss - mean) ** 2 for loss in losses) / max(len(losses) - 1, 1)) if mean < math.inf else 0.0
    at_edge = len(rates) > 1 and rate in (min(rates), max(rates))
    return BestRate(cell, rate, mean, spread, len(losses), at_edge)
