"""Where the commands print: 80 columns, or as wide as the terminal is."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import typer

from sigprop.grid import WIDTH, Grid, filled


def show(*parts: Any) -> None:
    """Print text and tables, one after the other."""
    SIGN.stop()
    for part in parts:
        typer.echo(part.text(width()) if isinstance(part, Grid) else _text(str(part)))


def _text(text: str) -> str:
    return text if text.startswith(("{", "[")) else filled(text, width())


def width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


class SignOfLife:
    """After two seconds of silence one line on stderr with the time that has passed, on a terminal; gone with the first
    word that a command prints."""

    SILENCE = 2.0

    def __init__(self) -> None:
        self._ended: Event | None = None

    def start(self, what: str) -> None:
        self.stop()
        if sys.stderr.isatty():
            self._ended = Event()
            Thread(target=self._tell, args=(what, self._ended, time.monotonic()), daemon=True).start()

    def stop(self) -> None:
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _tell(self, what: str, ended: Event, start: float) -> None:
        told = ""
        while not ended.wait(self.SILENCE):
            told = f"sigprop {what}: {time.monotonic() - start:.0f} s"
            sys.stderr.write(f"\r{told}")
            sys.stderr.flush()
        if told:
            sys.stderr.write("\r" + " " * len(told) + "\r")
            sys.stderr.flush()


SIGN = SignOfLife()


@contextmanager
def progress(what: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar with the time left, on stderr; call what it gives with the number of steps done."""
    from rich.console import Console
    from rich.progress import Progress

    SIGN.stop()
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
