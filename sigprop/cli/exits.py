"""How a command ends: whatever went wrong is one line on stderr and an exit code.

0  healthy          1  findings          2  usage or input error          70  a fault of sigprop
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import click
import typer

from sigprop.errors import SigpropError

WRONG_INPUT, FAULT, INTERRUPTED = 2, 70, 130


def exit_code(app: typer.Typer) -> int:
    """Run an app and say how it ended."""
    try:
        return app(standalone_mode=False) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        return _refused(_usage(error))
    except SigpropError as error:
        return _refused(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        told = _told_by_user_code(error)
        return _refused(told) if told else _fault(error)


def _refused(message: str) -> int:
    typer.secho(f"sigprop: {' '.join(message.split())}", err=True, fg="red", bold=True)
    return WRONG_INPUT


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    if context is None:
        return error.format_message()
    return f"{error.format_message().rstrip('.')}; see `{context.command_path} --help`"


def _told_by_user_code(error: Exception) -> str | None:
    """The line of the user's own file that raised, unless sigprop's own code stands deeper."""
    loaded = sys.modules.get("sigprop.sources.user_file")
    if loaded is None:
        return None
    own = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path in loaded.IMPORTED:
            return loaded.told(error, path)
        if frame.filename.startswith(own):
            return None
    return None


def _fault(error: Exception) -> int:
    """Not the user's doing: the whole traceback, and what to do with it."""
    traceback.print_exception(error)
    message = f"sigprop: a fault of sigprop ({type(error).__name__}); please report it with the lines above"
    typer.secho(message, err=True, fg="red", bold=True)
    return FAULT
