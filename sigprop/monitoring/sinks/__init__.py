"""Where a run is written to: one thin file per tracker, each through the tracker's own API."""

from __future__ import annotations

from pathlib import Path

from sigprop.errors import UnknownNameError
from sigprop.monitoring.sinks.base import Sink
from sigprop.monitoring.sinks.jsonl import JsonLines, read_events, read_samples
from sigprop.monitoring.sinks.mlflow import Mlflow
from sigprop.monitoring.sinks.tensorboard import TensorBoard
from sigprop.monitoring.sinks.trackio import Trackio
from sigprop.monitoring.sinks.wandb import Wandb

SINKS = {sink.name: sink for sink in (TensorBoard, Wandb, Mlflow, Trackio)}


def open_sink(sink: str | Sink, folder: str | Path) -> Sink:
    """A sink by its name, or one that the user has opened already."""
    if not isinstance(sink, str):
        return sink
    if sink not in SINKS:
        raise UnknownNameError("sink", sink, SINKS)
    return SINKS[sink](folder)


__all__ = [
    "SINKS",
    "JsonLines",
    "Mlflow",
    "Sink",
    "TensorBoard",
    "Trackio",
    "Wandb",
    "open_sink",
    "read_events",
    "read_samples",
]
