"""`sigprop predict`: moments of a model from theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sigprop.blueprints import BLUEPRINTS, predict
from sigprop.cli.settings import parse_settings
from sigprop.errors import UnknownNameError
from sigprop.report.figures import profile_figure
from sigprop.report.terminal import profile_table
from sigprop.results import Profile


def predict_command(
    model: Annotated[str, typer.Argument(help=f"A blueprint: {', '.join(BLUEPRINTS)}.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting, key=value; may be repeated.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Write a figure by depth to this file.")] = None,
) -> None:
    """Predict forward and backward moments at initialization."""
    profile = _predict(model, parse_settings(settings or []))
    if figure is not None:
        profile_figure({model: profile}, figure)
    if json:
        typer.echo(profile.to_json())
        return
    Console().print(profile_table(profile, f"predicted: {model}"))
    if figure is not None:
        Console().print(f"figure: {figure}")


def _predict(model: str, settings: dict) -> Profile:
    if model not in BLUEPRINTS:
        raise UnknownNameError("model", model, BLUEPRINTS)
    return predict(BLUEPRINTS[model].from_settings(settings))
