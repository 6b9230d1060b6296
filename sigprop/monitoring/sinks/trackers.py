"""Trackers, each through its own API and imported when it is opened; scalars are under `sigprop/...`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from sigprop.monitoring.sinks.base import sink

STEP = "sigprop/step"
FORBIDDEN = re.compile(r"[^\w\-./ :]")


def _named(scalars: dict[str, float]) -> dict[str, float]:
    return {f"sigprop/{key}": value for key, value in scalars.items()}


@sink
class TensorBoard:
    """Torch's own writer: scalars under their keys, findings as text."""

    name = "tensorboard"

    def __init__(self, folder: str | Path):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(Path(folder) / "tensorboard"))

    def write(self, step: int, scalars: dict[str, float]) -> None:
        for key, value in scalars.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def tell(self, step: int, finding: Any) -> None:
        self._writer.add_text(f"findings/{finding.name}", f"{finding.title}\n\n{finding.cause}", step)

    def close(self) -> None:
        self._writer.close()


@sink
class Mlflow:
    """The active run, or one of its own in the folder; characters that MLflow refuses become underscores."""

    name = "mlflow"

    def __init__(self, folder: str | Path):
        self._mlflow = importlib.import_module("mlflow")
        self._own = self._mlflow.active_run() is None
        if self._own:
            self._mlflow.set_tracking_uri((Path(folder).resolve() / "mlruns").as_uri())
            self._mlflow.start_run()
        self._run = self._mlflow.active_run().info.run_id

    def write(self, step: int, scalars: dict[str, float]) -> None:
        metrics = {FORBIDDEN.sub("_", key): value for key, value in _named(scalars).items()}
        self._mlflow.log_metrics(metrics, step=step, run_id=self._run)

    def tell(self, step: int, finding: Any) -> None:
        self._mlflow.set_tag(f"sigprop.finding.{finding.name}", f"step {step}: {finding.title}")

    def close(self) -> None:
        if self._own:
            self._mlflow.end_run()


@sink
class Trackio:
    """A local tracker, in a run of its own."""

    name = "trackio"

    def __init__(self, folder: str | Path):
        self._own, self._run = True, importlib.import_module("trackio").init(project="sigprop")

    def write(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log(_named(scalars), step=step)

    def tell(self, step: int, finding: Any) -> None:
        self._run.log({f"sigprop/finding/{finding.name}": 1.0}, step=step)

    def close(self) -> None:
        if self._own:
            self._run.finish()


@sink
class Wandb(Trackio):
    """The run that is open, or one of its own; scalars have their own step, so that the user's counting goes on."""

    name = "wandb"

    def __init__(self, folder: str | Path):
        wandb = importlib.import_module("wandb")
        self._own = wandb.run is None
        self._run = wandb.run or wandb.init(dir=str(folder), project="sigprop")
        self._run.define_metric(STEP)
        self._run.define_metric("sigprop/*", step_metric=STEP)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log({STEP: step, **_named(scalars)})

    def tell(self, step: int, finding: Any) -> None:
        self._run.summary[f"sigprop/finding/{finding.name}"] = f"step {step}: {finding.title}"
