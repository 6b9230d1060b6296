"""How a command ends: whatever went wrong is one line on stderr and an exit code.

0  nothing found    1  findings          2  usage or input error          70  a fault of sigprop
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import typer

from sigprop.errors import SigpropError
from sigprop.grid import clean

WRONG_INPUT, FAULT, INTERRUPTED = 2, 70, 130
ClickException: Any = typer.BadParameter.__mro__[2]  # typer brings a click of its own, or uses the installed one


def exit_code(app: typer.Typer, arguments: list[str] | None = None) -> int:
    """Run an app (on the process's arguments if none are given) and say how it ended."""
    try:
        return app(args=arguments, standalone_mode=False) or 0
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return INTERRUPTED
    except ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
            return WRONG_INPUT
        return _refused(_usage(error))
    except SigpropError as error:
        place = _user_place(error.__cause__)
        return _refused(f"{place}: {error}" if place and place not in str(error) else str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return _refused("not enough memory for a model, a batch or a result of this size")
        place = _user_place(error)
        return _refused(f"{place}: {type(error).__name__}: {error}") if place else _fault(error)


def _refused(message: str) -> int:
    line = "; ".join(" ".join(part.split()) for part in message.splitlines() if part.strip())
    typer.secho(f"sigprop: {clean(line)}", err=True, fg="red", bold=True)
    return WRONG_INPUT


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    if context is None:
        return error.format_message()
    return f"{error.format_message().rstrip('.')}; see `{context.command_path} --help`"


def _user_place(error: BaseException | None) -> str | None:
    """The line of the user's own file that raised, unless sigprop's own code stands deeper."""
    loaded = sys.modules.get("sigprop.inputs.user_file")
    if loaded is None or error is None:
        return None
    own = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path in loaded.IMPORTED:
            return loaded.place(error, path)
        if frame.filename.startswith(own):
            return None
    return None


def _fault(error: Exception) -> int:
    """Not the user's doing: the whole traceback, and what to do with it."""
    traceback.print_exception(error)
    message = f"sigprop: a fault of sigprop ({type(error).__name__}); please report it with the lines above"
    typer.secho(message, err=True, fg="red", bold=True)
    return FAULT
