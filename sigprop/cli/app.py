"""The commands in one list."""

from __future__ import annotations

from typing import Annotated

import typer

from sigprop import __version__
from sigprop.cli.check import check_command
from sigprop.cli.console import SIGN
from sigprop.cli.coordcheck import coordcheck_command
from sigprop.cli.critical import critical_command
from sigprop.cli.demo import demo_command
from sigprop.cli.diff import diff_command
from sigprop.cli.exits import exit_code
from sigprop.cli.explore import explore_command
from sigprop.cli.mcp import mcp_command
from sigprop.cli.measure import measure_command
from sigprop.cli.plan import plan_command
from sigprop.cli.predict import predict_command
from sigprop.cli.recipes import recipes_command
from sigprop.cli.research import research_app
from sigprop.cli.watch import watch_command

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
