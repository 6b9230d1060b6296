"""Weights & Biases: the run that is open, or one of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from sigprop.monitoring.sinks.base import sink

STEP = "sigprop/step"


@sink
class Wandb:
    """Scalars as `sigprop/...` against their own step, so that they do not disturb the user's counting."""

    name = "wandb"

    def __init__(self, folder: str | Path, run: Any = None):
        wandb = importlib.import_module("wandb")

        self._own = run is None and wandb.run is None
        self._run = run or wandb.run or wandb.init(dir=str(folder), project="sigprop")
        self._run.define_metric(STEP)
        self._run.define_metric("sigprop/*", step_metric=STEP)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log({STEP: step, **{f"sigprop/{key}": value for key, value in scalars.items()}})

    def tell(self, step: int, finding: Any) -> None:
        self._run.summary[f"sigprop/finding/{finding.name}"] = f"step {step}: {finding.title}"

    def close(self) -> None:
        if self._own:
            self._run.finish()
