"""MLflow: the active run, or one of its own in the folder."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from sigprop.monitoring.sinks.base import sink

FORBIDDEN = re.compile(r"[^\w\-./ :]")


@sink
class Mlflow:
    """Metrics under `sigprop/...`; characters that MLflow refuses become underscores."""

    name = "mlflow"

    def __init__(self, folder: str | Path):
        mlflow = importlib.import_module("mlflow")

        self._mlflow = mlflow
        self._own = mlflow.active_run() is None
        if self._own:
            mlflow.set_tracking_uri((Path(folder).resolve() / "mlruns").as_uri())
            mlflow.start_run()
        self._run = mlflow.active_run().info.run_id

    def write(self, step: int, scalars: dict[str, float]) -> None:
        metrics = {f"sigprop/{FORBIDDEN.sub('_', key)}": value for key, value in scalars.items()}
        self._mlflow.log_metrics(metrics, step=step, run_id=self._run)

    def tell(self, step: int, finding: Any) -> None:
        self._mlflow.set_tag(f"sigprop.finding.{finding.name}", f"step {step}: {finding.title}")

    def close(self) -> None:
        if self._own:
            self._mlflow.end_run()
