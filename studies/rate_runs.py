"""What studies over learning rates share: how a device trains, rows of runs, and the best rate of a method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sigprop.research.lab import Settings
from sigprop.research.lab.trainer import Run
from studies.reproduction import mean_and_spread

Cell = tuple[float, int]
"""A learning rate and a seed."""


def settings_on(device: str, steps: int, **options: Any) -> Settings:
    """A CUDA graph with products in bfloat16 on a GPU, plain float32 elsewhere."""
    fast = {"mode": "graph", "precision": "bfloat16"} if device == "cuda" else {}
    return Settings(steps=steps, device=device, **{**fast, **options})


def rows_of(cells: Sequence[Cell], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a run; a loss that is not finite is None."""
    last = [round(run.last, 5) if math.isfinite(run.last) else None for run in runs]
    return [{"rate": rate, "seed": seed, "last": loss} for (rate, seed), loss in zip(cells, last, strict=True)]


@dataclass(frozen=True)
class Best:
    """The rate with the lowest mean loss over seeds; runs that broke count as infinite.

    Where some rates have more seeds than others, only the former are compared: one seed more is one chance more.
    """

    rate: float
    losses: list[float]

    @property
    def mean(self) -> float:
        return mean_and_spread(self.losses)[0]


def best_of(found: dict[str, Any]) -> Best:
    """Of one method."""
    by_rate: dict[float, list[float]] = {}
    for run in found["runs"]:
        by_rate.setdefault(run["rate"], []).append(math.inf if run["last"] is None else run["last"])
    seeds = max(map(len, by_rate.values()))
    tried = [Best(rate, losses) for rate, losses in by_rate.items() if len(losses) == seeds]
    return min(tried, key=lambda best: best.mean)
