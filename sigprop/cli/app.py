"""The commands, and one place where errors become messages and exit codes."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from sigprop.cli.demo import demo_command
from sigprop.cli.predict import predict_command
from sigprop.errors import SigpropError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Predict, measure, prescribe and check how signals and gradients travel through a network.",
)
app.command("predict")(predict_command)
app.command("demo")(demo_command)


@app.callback()
def _root() -> None:
    pass


def main() -> None:
    """Exit codes: 0 healthy, 1 findings, 2 usage or input error."""
    try:
        app()
    except SigpropError as error:
        Console(stderr=True, highlight=False).print(f"sigprop: {error}", style="bold red", markup=False)
        sys.exit(2)
