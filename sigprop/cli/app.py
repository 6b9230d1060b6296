"""The commands, and one place where errors become messages and exit codes."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from sigprop.cli.coordcheck import coordcheck_command
from sigprop.cli.critical import critical_command
from sigprop.cli.demo import demo_command
from sigprop.cli.exponents import exponents_command
from sigprop.cli.measure import measure_command
from sigprop.cli.phase import phase_command
from sigprop.cli.plan import plan_command
from sigprop.cli.predict import predict_command
from sigprop.cli.recipes import recipes_command
from sigprop.errors import SigpropError

COMMANDS = {
    "predict": predict_command,
    "measure": measure_command,
    "recipes": recipes_command,
    "plan": plan_command,
    "critical": critical_command,
    "phase": phase_command,
    "coordcheck": coordcheck_command,
    "exponents": exponents_command,
    "demo": demo_command,
}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Predict, measure, prescribe and check how signals and gradients travel through a network.",
)
for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> None:
    """Exit codes: 0 healthy, 1 findings, 2 usage or input error."""
    try:
        app()
    except SigpropError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"sigprop: {error}", style="bold red", markup=False)
        sys.exit(2)
