"""The commands in one list."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from sigprop import __version__
from sigprop.cli.check import check_command
from sigprop.cli.coordcheck import coordcheck_command
from sigprop.cli.critical import critical_command
from sigprop.cli.demo import demo_command
from sigprop.cli.diff import diff_command
from sigprop.cli.explore import explore_command
from sigprop.cli.measure import measure_command
from sigprop.cli.options import SIGN
from sigprop.cli.plan import plan_command, recipes_command
from sigprop.cli.predict import predict_command
from sigprop.cli.research import research_app
from sigprop.cli.watch import watch_command
from sigprop.errors import SigpropError
from sigprop.grid import clean


def mcp_command() -> None:
    """Serve check, predict, diff and plan to an agent.

    Model Context Protocol over stdio; opens no port.
    """
    from sigprop.integrations.mcp import serve

    serve()


COMMANDS = {
    "check": check_command,
    "diff": diff_command,
    "predict": predict_command,
    "measure": measure_command,
    "plan": plan_command,
    "recipes": recipes_command,
    "coordcheck": coordcheck_command,
    "watch": watch_command,
    "critical": critical_command,
    "explore": explore_command,
    "demo": demo_command,
    "mcp": mcp_command,
}

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Predict, measure, prescribe and check how signals and gradients travel through a network.",
    epilog="Exit codes: 0 nothing found, 1 findings or a difference, 2 usage or input error, 70 a fault of sigprop.",
)
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(research_app, name="research")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sigprop {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    SIGN.start(context.invoked_subcommand or "")
    context.call_on_close(SIGN.stop)


def main() -> None:
    """Run the command line; the process ends with its exit code."""
    raise SystemExit(exit_code(app))


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
