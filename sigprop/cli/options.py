"""Options that several commands share, and outputs that are tried before the work begins."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sigprop.cli.console import SIGN
from sigprop.errors import InputError

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
Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Of the weights that are initialized and of a random batch.")
]
Json = Annotated[bool, typer.Option("--json", callback=hush, help="Print the result as JSON.")]
Figure = Annotated[Path | None, typer.Option(callback=writable_figure, help="Write a figure to this file.")]
Everything = Annotated[bool, typer.Option("--all", help="Every row, not one per block.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=hush, help="No progress bar.")]
