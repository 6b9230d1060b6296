"""Options that several commands share, and outputs that are tried before the work begins."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any

import typer

from sigprop.errors import InputError
from sigprop.grid import WIDTH, Grid, filled


def show(*parts: Any) -> None:
    """Print text, tables, and plain data as JSON, one after the other."""
    SIGN.stop()
    for part in parts:
        if isinstance(part, Grid):
            typer.echo(part.text(width()))
        elif isinstance(part, (dict, list)):
            from sigprop.results.files import written

            typer.echo(written(part))
        else:
            typer.echo(part if part.startswith(("{", "[")) else filled(part, width()))


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


FORMATS = (".eps", ".jpeg", ".jpg", ".pdf", ".pgf", ".png", ".ps", ".svg", ".svgz", ".tif", ".tiff", ".webp")
MODEL_HELP = "A reference network, file.py:Model(width=256), a config.json, a checkpoint folder, or a cached hub id."


def writable(path: Path | None) -> Path | None:
    """The path, if a file can be written there."""
    if path is None:
        return None
    if path.is_dir():
        raise InputError(f"{path} is a folder: needs the name of a file")
    folder = next(parent for parent in (path.parent, *path.parent.parents) if parent.exists())
    try:
        with path.open("ab") if path.exists() else tempfile.TemporaryFile(dir=folder):
            return path
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def writable_figure(path: Path | None) -> Path | None:
    """The path, if a figure can be written there in a format that exists."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise InputError(f"{path} is no figure: needs a name that ends in {', '.join(FORMATS)}")
    return writable(path)


def require_device(name: str) -> str:
    """The device, if this machine has it."""
    import torch

    try:
        torch.empty(0, device=name)
    except Exception as error:
        raise InputError(f"--device {name} is not there: {str(error).splitlines()[0]}") from error
    return name


def hush(wanted: bool) -> bool:
    """No sign of life for what is read by a program, or asked to be quiet."""
    if wanted:
        SIGN.stop()
    return wanted


Model = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting, key=value; may be repeated.")]
Data = Annotated[
    str | None, typer.Option(help="A text file, a folder of images, or file.py:name of a batch or DataLoader.")
]
MOST = 2**24
Batch = Annotated[int, typer.Option(min=1, max=MOST, help="Sequences or images in the batch.")]
Tokens = Annotated[int, typer.Option(min=2, max=MOST, help="Tokens in a sequence.")]
Seeds = Annotated[int, typer.Option(min=1, max=MOST, help="Initializations; more than one gives standard errors.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the weights and of a random batch.")]
Json = Annotated[bool, typer.Option("--json", callback=hush, help="Print the result as JSON.")]
Figure = Annotated[Path | None, typer.Option(callback=writable_figure, help="Write a figure to this file.")]
Everything = Annotated[bool, typer.Option("--all", help="Every row, not one per block.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=hush, help="No progress bar.")]
