"""Where the commands print: the terminal as wide as it is, a file or pipe wide enough for a table."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_WIDTH = 120


def output_console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
