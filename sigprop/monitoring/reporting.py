"""A watched run as a `Report` and as a page: the same verdict, findings and charts as `check`, over time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

import sigprop
from sigprop.errors import InputError
from sigprop.monitoring.findings.base import RunContext, findings_of
from sigprop.monitoring.history import History, Sample, read_events
from sigprop.monitoring.scalars import folded
from sigprop.report.html import run_page
from sigprop.results.files import write_whole
from sigprop.results.report import Finding, Report

FILE = "crash.json"


def write_crash(
    folder: Path, step: int, error: BaseException, inside: str, history: History, findings: list[Finding]
) -> None:
    """`crash.json`: the error, the module that was running if the step was sampled, and the last samples in full."""
    data = {
        "step": step,
        "error": f"{type(error).__name__}: {error}",
        "inside": inside,
        "findings": [finding.title for finding in findings],
        "losses": [[at, str(loss)] for at, loss in list(history.losses)[-64:]],
        "samples": [sample.to_dict() for sample in history.recent],
    }
    write_whole(folder / FILE, json.dumps(data, allow_nan=False) + "\n")


def report_of(model: str, history: History, findings: Sequence[Finding]) -> Report:
    """Findings, with what they were found in."""
    steps = [sample.step for sample in history]
    meta = {
        "kind": "watch",
        "model": model,
        "samples": len(steps),
        "first": steps[0] if steps else 0,
        "last": steps[-1] if steps else 0,
        "sigprop": sigprop.__version__,
        "torch": torch.__version__,
    }
    return Report(list(findings), meta=meta)


def recorded_run(folder: str | Path) -> tuple[Report, History]:
    """What a run wrote to its folder, judged again as it was while it ran."""
    events = read_events(folder)
    if not events:
        raise InputError(f"{folder} has no recorded run: needs the folder that `sp.Watch(model, folder=...)` writes to")
    start = next((event for event in events if event["event"] == "run"), {})
    history, findings = History(), []
    context = RunContext(fresh=not start.get("start"))
    for event in events:
        if event["event"] == "sample":
            history.add(Sample.from_dict(event))
        if event["event"] in ("sample", "loss") and "loss" in event:
            history.add_loss(int(event["step"]), float(event["loss"]))
        if event["event"] == "sample":
            findings += findings_of(history, context)
    return report_of(str(start.get("model", folder)), history, findings), history


def write_page(report: Report, history: History, path: str | Path) -> Path:
    """One self-contained HTML file: every folded scalar over the steps, and the last sample as a table."""
    series: dict[str, list[tuple[float, float]]] = {}
    for step, loss in history.losses:
        series.setdefault("run/loss", []).append((step, loss))
    last: list[tuple[str, float, str]] = []
    for sample in history:
        scalars = folded(sample)
        last = [(key, value, scalars.names.get(key, "")) for key, value in scalars.values.items()]
        for key, value in scalars.values.items():
            if key != "run/loss":
                series.setdefault(key, []).append((sample.step, value))
    write_whole(Path(path), run_page(report, series, last))
    return Path(path)
