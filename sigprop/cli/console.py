"""Where the commands print: 80 columns, or as wide as the terminal is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from sigprop.grid import WIDTH, Grid, filled


def show(*parts: Any) -> None:
    """Print text and tables, one after the other."""
    for part in parts:
        typer.echo(part.text(width()) if isinstance(part, Grid) else _text(str(part)))


def _text(text: str) -> str:
    return text if text.startswith(("{", "[")) else filled(text, width())


def width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


@contextmanager
def working(what: str, quiet: bool = False) -> Iterator[None]:
    """A sign of life with the time that has passed, on stderr and on a terminal alone, for work of unknown length."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(what, total=None)
        yield


@contextmanager
def progress(what: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar with the time left, on stderr; call what it gives with the number of steps done."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
