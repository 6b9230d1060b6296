"""trackio: a local tracker with the calls of Weights & Biases."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from sigprop.monitoring.sinks.base import sink


@sink
class Trackio:
    """Scalars as `sigprop/...`, in a run of its own unless one is given."""

    name = "trackio"

    def __init__(self, folder: str | Path, run: Any = None):
        trackio = importlib.import_module("trackio")

        self._own = run is None
        self._run = run or trackio.init(project="sigprop")

    def write(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log({f"sigprop/{key}": value for key, value in scalars.items()}, step=step)

    def tell(self, step: int, finding: Any) -> None:
        self._run.log({f"sigprop/finding/{finding.name}": 1.0}, step=step)

    def close(self) -> None:
        if self._own:
            self._run.finish()
