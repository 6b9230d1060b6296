"""`sigprop measure`: moments of a real model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sigprop.cli.options import Batch, Data, Everything, Figure, Json, Model, Quiet, Seeds, Settings, Tokens, show
from sigprop.grid import Grid, number, thinned

if TYPE_CHECKING:
    from sigprop.results import Profile

EXTRAS = 40


def measure_command(
    model: Model,
    settings: Settings = None,
    data: Data = None,
    batch: Batch = 4,
    tokens: Tokens = 128,
    seeds: Seeds = 1,
    sites: Annotated[list[str] | None, typer.Option(help="A site or pattern to keep; may be repeated.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Also attention scores.")] = False,
    junctions: Annotated[bool, typer.Option("--junctions", help="Also residual additions.")] = False,
    formats: Annotated[bool, typer.Option("--formats", help="Also what low-precision formats lose.")] = False,
    all: Everything = False,
    json: Json = False,
    quiet: Quiet = False,
    figure: Figure = None,
) -> None:
    """Run a model and report its moments.

    One forward and one backward pass, for each of the seeds. Exit code 1 when a value is not finite.
    """
    from sigprop.inputs import open_source, parse_settings
    from sigprop.measurement import measure
    from sigprop.results.profile import COLUMNS_IN_WORDS

    source = open_source(model, parse_settings(settings or []), data, batch, tokens)
    source.require_draws(seeds)
    profile = measure(
        None,
        source.required_batch(),
        source.loss,
        build=source.build,
        seeds=seeds,
        sites=sites,
        scores=scores,
        junctions=junctions,
        formats=formats,
        progress=not (json or quiet),
    )
    if figure is not None:
        profile.plot(figure)
    if json:
        show(profile.to_json())
    else:
        show(profile.summary(), "", profile.table(all), "", COLUMNS_IN_WORDS)
        if any(row.extras for row in profile.sites):
            show("", _extras(profile))
        if figure is not None:
            show(f"figure: {figure}")
    _report_non_finite(profile.meta)


def _extras(profile: Profile) -> Grid:
    """What was asked for besides the moments (attention scores, losses of low-precision formats), where not zero."""
    found = [(row.name, key, value) for row in profile.sites for key, value in row.extras.items() if value]
    rows = [[name, key.replace("_", " "), number(value)] for name, key, value in thinned(found, EXTRAS)]
    return Grid(["site", "besides", "value"], rows, left=[1])


def _report_non_finite(meta: dict) -> None:
    kinds = {"first_non_finite": "value", "first_non_finite_gradient": "gradient"}
    found = [f"the first {kind} that is not finite is at {meta[key]}" for key, kind in kinds.items() if key in meta]
    for line in found:
        typer.echo(line, err=True)
    if found:
        raise typer.Exit(1)
