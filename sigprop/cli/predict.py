"""`sigprop predict`: moments of a model from theory, beside a measurement if asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigprop.blueprints import BLUEPRINTS
from sigprop.blueprints import predict as predict_blueprint
from sigprop.cli.console import output_console
from sigprop.measure import measure as measure_model
from sigprop.report.figures import profile_figure
from sigprop.report.terminal import comparison_table, profile_table
from sigprop.results import Profile
from sigprop.sources import Source, open_source, parse_settings
from sigprop.trace import predict as predict_model


def predict_command(
    model: Annotated[
        str, typer.Argument(help=f"A blueprint ({', '.join(BLUEPRINTS)}), config.json or file.py:factory.")
    ],
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting, key=value; may be repeated.")] = None,
    state: Annotated[str, typer.Option(help="Of a traced model: kernel, or preview (faster, less exact).")] = "kernel",
    tokens: Annotated[int, typer.Option(help="Tokens that a traced model is followed over.")] = 128,
    networks: Annotated[int, typer.Option(help="Networks with heads of their own that are averaged.")] = 1,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure the real model; a name means the reference network then.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Initializations to measure.")] = 8,
    json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Write a figure by depth to this file.")] = None,
) -> None:
    """Predict forward and backward moments at initialization."""
    chosen = parse_settings(settings or [])
    profiles: dict[str, Profile] = {}
    if model in BLUEPRINTS and not measure:
        profiles["predicted"] = predict_blueprint(BLUEPRINTS[model].from_settings(chosen))
    else:
        source = open_source(model, chosen, batch=1, tokens=tokens)
        profiles["predicted"] = _traced(source, state, tokens, networks)
        if measure:
            profiles["measured"] = measure_model(None, source.batch, source.loss, build=source.build, seeds=seeds)
    if figure is not None:
        profile_figure(profiles, figure)
    if json:
        typer.echo(profiles["predicted"].to_json())
        return
    console = output_console()
    for name, profile in profiles.items():
        console.print(profile_table(profile, f"{name}: {model}"))
    if measure:
        console.print(comparison_table(profiles["predicted"].compare(profiles["measured"])))
    if figure is not None:
        console.print(f"figure: {figure}")


def _traced(source: Source, state: str, tokens: int, networks: int) -> Profile:
    """The prediction for a model that can be built, with the loss that a measurement would use."""
    return predict_model(source.build, source.batch, loss=source.loss, state=state, tokens=tokens, networks=networks)
