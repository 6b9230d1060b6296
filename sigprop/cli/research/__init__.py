"""`sigprop research`: what readers of the papers use."""

import typer

from sigprop.cli.research.exponents import exponents_command
from sigprop.cli.research.kernels import kernels_command
from sigprop.cli.research.phase import phase_command
from sigprop.cli.research.reproduce import reproduce_command
from sigprop.cli.research.sweep import sweep_app
from sigprop.cli.research.train import train_command

RESEARCH_COMMANDS = {
    "phase": phase_command,
    "exponents": exponents_command,
    "kernels": kernels_command,
    "train": train_command,
    "reproduce": reproduce_command,
}

research_app = typer.Typer(no_args_is_help=True, help="Phase diagrams, exponents, kernels, trainings.")
for name, command in RESEARCH_COMMANDS.items():
    research_app.command(name)(command)
research_app.add_typer(sweep_app, name="sweep")

__all__ = ["RESEARCH_COMMANDS", "research_app"]
