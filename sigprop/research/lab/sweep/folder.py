"""Results on disk: one file per trial, written atomically, and a lock that says who is running it.

The lock belongs to a process and is let go by the system when the process ends, however it ends. So a killed worker, a
second start or another machine on the same file system neither loses nor repeats a trial.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sigprop.errors import InputError
from sigprop.research.lab.sweep.spec import Trial, identity
from sigprop.results.files import append, write_whole

FORMAT = 1


class ResultFolder:
    """`<identity>.json` holds a result; `.lock` is held while it is being made; `.tries` has a byte for every try.

    `.error` says why a trial has no result; it stands until the next start.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be made a folder: {error.strerror}") from error

    def is_done(self, trial: Trial) -> bool:
        return self._file(trial).is_file()

    def missing(self, trials: list[Trial]) -> list[Trial]:
        return [trial for trial in trials if not self.is_done(trial)]

    def tries(self, trial: Trial) -> int:
        """How often a process began this trial."""
        path = self._file(trial).with_suffix(".tries")
        return path.stat().st_size if path.is_file() else 0

    def start(self, trials: list[Trial]) -> None:
        """A new start: trials that failed may be tried again."""
        for trial in trials:
            self._file(trial).with_suffix(".error").unlink(missing_ok=True)

    def fail(self, trial: Trial, reason: BaseException) -> None:
        """Say why a trial ended without a result."""
        write_whole(self._file(trial).with_suffix(".error"), f"{type(reason).__name__}: {reason}\n")

    def reason(self, trial: Trial) -> str | None:
        """Why a trial has no result; None if it did not fail."""
        path = self._file(trial).with_suffix(".error")
        return path.read_text(encoding="utf-8").strip() if path.is_file() else None

    def open(self, trials: list[Trial]) -> list[Trial]:
        """Trials to be run, those that ended a process before last."""
        return sorted((trial for trial in self.missing(trials) if self.reason(trial) is None), key=self.tries)

    def begin(self, trial: Trial) -> None:
        """Count one more try, before it is made: it may end the process."""
        append(self._file(trial).with_suffix(".tries"), ".")

    def put(self, trial: Trial, result: dict[str, Any]) -> None:
        content = {"format": FORMAT, "trial": trial, "result": result}
        write_whole(self._file(trial), json.dumps(content, indent=1) + "\n")

    @contextmanager
    def claimed(self, trial: Trial) -> Iterator[bool]:
        """Whether this process may run the trial: nobody else is running it and it has no result."""
        lock = os.open(self._file(trial).with_suffix(".lock"), os.O_CREAT | os.O_RDWR)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield not self.is_done(trial)
        finally:
            os.close(lock)

    def results(self) -> list[dict[str, Any]]:
        """Every trial with its result, in order of their names."""
        found = []
        for path in sorted(self.path.glob("*.json")):
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise InputError(f"{path} is no result: {error}; remove it to run the trial again") from error
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                kind = content.get("format") if isinstance(content, dict) else type(content).__name__
                raise InputError(f"{path} was written by another version (format {kind!r}): this one reads {FORMAT}")
            found.append(content)
        return found

    def _file(self, trial: Trial) -> Path:
        return self.path / f"{identity(trial)}.json"
