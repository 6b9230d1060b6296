"""`sigprop measure`: moments of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigprop.cli.console import output_console
from sigprop.measure import measure
from sigprop.report.figures import profile_figure
from sigprop.report.terminal import extras_table, profile_table
from sigprop.sources import open_source, parse_settings


def measure_command(
    model: Annotated[str, typer.Argument(help="A reference network, a config.json, or file.py:factory.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting, key=value; may be repeated.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A text file, a folder of images, or file.py:name of a batch or loader."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences or images in the batch.")] = 4,
    tokens: Annotated[int, typer.Option(help="Tokens in a sequence.")] = 128,
    seeds: Annotated[int, typer.Option(help="Initializations; more than one gives standard errors.")] = 1,
    sites: Annotated[list[str] | None, typer.Option(help="A site or pattern to keep; may be repeated.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Also attention scores.")] = False,
    junctions: Annotated[bool, typer.Option("--junctions", help="Also residual additions.")] = False,
    formats: Annotated[bool, typer.Option("--formats", help="Also what low-precision formats lose.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Write a figure by depth to this file.")] = None,
) -> None:
    """Run a model once, forward and backward, and report its moments. Exit code 1 when a value is not finite."""
    source = open_source(model, parse_settings(settings or []), data, batch, tokens)
    source.require_draws(seeds)
    profile = measure(
        None,
        source.batch,
        source.loss,
        build=source.build,
        seeds=seeds,
        sites=sites,
        scores=scores,
        junctions=junctions,
        formats=formats,
    )
    if figure is not None:
        profile_figure({model: profile}, figure)
    if json:
        typer.echo(profile.to_json())
    else:
        console, extras = output_console(), extras_table(profile)
        console.print(profile_table(profile, f"measured: {model}"))
        if extras is not None:
            console.print(extras)
    _report_non_finite(profile.meta)


def _report_non_finite(meta: dict) -> None:
    kinds = {"first_non_finite": "value", "first_non_finite_gradient": "gradient"}
    found = [f"the first {kind} that is not finite is at {meta[key]}" for key, kind in kinds.items() if key in meta]
    for line in found:
        typer.echo(line, err=True)
    if found:
        raise typer.Exit(1)
