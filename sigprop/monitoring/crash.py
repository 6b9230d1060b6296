"""What is kept when a run breaks: the last good rows, the findings, and where it was."""

from __future__ import annotations

import json
from pathlib import Path

from sigprop.monitoring.history import History
from sigprop.results.files import write_whole
from sigprop.results.report import Finding

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
