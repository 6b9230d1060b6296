"""`history.jsonl`: one line per event, written through at once, so that it can be read after a kill.

The first line of a run is `{"event": "run", "start": 0, ...}`, then `sample`, `loss` and `finding` lines. A run that
resumes at a step writes another `run` line; samples after that step are then those of the run that was left.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sigprop.monitoring.history import Sample

FILE = "history.jsonl"


class JsonLines:
    """Appends to a file in a folder, which is made."""

    name = "jsonl"

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._end_broken_line()
        self._file = self.path.open("a")

    def _end_broken_line(self) -> None:
        """A line cut off by a kill gets its end, so that the next one stands alone."""
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open("rb+") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")

    def event(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"event": kind, **values}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_events(folder: str | Path) -> list[dict[str, Any]]:
    """The events of the last run in a folder, with those before the step at which it resumed; broken lines left out."""
    path = Path(folder) if str(folder).endswith(".jsonl") else Path(folder) / FILE
    if not path.exists():
        return []
    events: list[dict[str, Any]] = []
    for line in path.read_text().splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if event.get("event") == "run":
            start = event.get("start", 0)
            events = [before for before in events if before.get("step", start) < start] if start else []
        events.append(event)
    return events


def read_samples(folder: str | Path) -> list[Sample]:
    """The samples of the last run."""
    return [Sample.from_dict(event) for event in read_events(folder) if event["event"] == "sample"]
