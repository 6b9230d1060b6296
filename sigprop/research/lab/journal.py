"""What a run wrote down: one JSON line for each entry, appended and flushed, readable after any crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sigprop.research.lab.checkpoint import append_to, write_file


class Journal:
    """Entries in memory and, with a path, on disk. Resuming at a step forgets what was written after it."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.entries = read_journal(path) if path is not None and path.is_file() else []

    def write(self, **entry: Any) -> None:
        self.entries.append(entry)
        if self.path is not None:
            append_to(self.path, json.dumps(entry) + "\n")

    def rewind(self, step: int) -> None:
        """Forget the entries of this step and later ones."""
        self.entries = [entry for entry in self.entries if entry["step"] < step]
        if self.path is not None and self.path.is_file():
            write_file(self.path, "".join(json.dumps(entry) + "\n" for entry in self.entries))


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last line that a crash cut short is left out."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries
