"""Accelerate: a watch on what `accelerator.prepare` returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from sigprop.monitoring import Sample, Watch


class AcceleratedWatch(Watch):
    """A `Watch` whose `step` may be called for every micro-batch: only those that end an optimizer step count."""

    def __init__(self, accelerator: Any, model: nn.Module, **options: Any):
        self.accelerator = accelerator
        folder = Path(getattr(accelerator, "project_dir", None) or ".") / "sigprop-watch"
        super().__init__(model, **{"folder": folder, "scaler": accelerator.scaler, **options})

    def step(self, loss: Any = None) -> Sample | None:
        return super().step(loss) if self.accelerator.sync_gradients else None


def watch_accelerated(accelerator: Any, model: nn.Module, **options: Any) -> AcceleratedWatch:
    """`with watch_accelerated(accelerator, model, every=50) as watch:`, after `prepare`; options are those of `Watch`.

    With trackers open (`log_with=...`), what is sampled is also logged through `accelerator.log`.
    """
    if getattr(accelerator, "trackers", None):
        options = {**options, "sinks": [*options.get("sinks", ()), AcceleratorLog(accelerator)]}
    return AcceleratedWatch(accelerator, model, **options)


class AcceleratorLog:
    """A sink that hands scalars to the accelerator's own trackers."""

    name = "accelerate"

    def __init__(self, accelerator: Any):
        self.accelerator = accelerator

    def write(self, step: int, scalars: dict[str, float]) -> None:
        self.accelerator.log({f"sigprop/{key}": value for key, value in scalars.items()}, step=step)

    def tell(self, step: int, finding: Any) -> None:
        self.accelerator.log({f"sigprop/finding/{finding.name}": 1.0}, step=step)

    def close(self) -> None: ...
