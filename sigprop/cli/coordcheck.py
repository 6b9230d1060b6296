"""`sigprop coordcheck`: do activations, updates and weights scale as they should with width and depth?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigprop.cli.console import output_console
from sigprop.errors import InputError
from sigprop.scaling import coord_check
from sigprop.scaling.figure import coordinate_figure
from sigprop.sources import open_family, parse_settings


def coordcheck_command(
    model: Annotated[str, typer.Argument(help="A reference network, a config.json, or file.py:factory.")],
    widths: Annotated[str, typer.Option(help="Widths, separated by commas.")] = "64,128,256,512",
    depths: Annotated[str, typer.Option(help="Depths, separated by commas; none: the width alone.")] = "",
    recipe: Annotated[
        str, typer.Option(help="Applied before training: mup, neural_tangent, sp, meta:s, none.")
    ] = "mup",
    expect: Annotated[str, typer.Option(help="The rule whose exponents are asked for.")] = "mup",
    depth_rule: Annotated[str, typer.Option(help="none, sqrt, linear or dslm.")] = "none",
    optimizer: Annotated[
        str, typer.Option(help="adamw, adam, sgd, momentum, lion, adafactor, muon:shape, ...")
    ] = "adamw",
    lr: Annotated[float | None, typer.Option(help="Learning rate at the smallest width.")] = None,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3,
    seeds: Annotated[int, typer.Option(help="Initializations at every width.")] = 3,
    tolerance: Annotated[float, typer.Option(help="Largest allowed deviation of an exponent.")] = 0.2,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting, key=value; may be repeated.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Write a figure of sizes over width to this file.")] = None,
) -> None:
    """Train a few steps at several widths and judge every exponent. Exit code 1 when the check fails."""
    family = open_family(model, parse_settings(settings or []))
    report = coord_check(
        family.build,
        _numbers("--widths", widths),
        _numbers("--depths", depths) if depths else None,
        batch=family.batch,
        loss=family.loss,
        plan=None if recipe == "none" else recipe,
        expect=expect,
        optimizer=optimizer,
        depth_rule=depth_rule,
        lr=lr,
        steps=steps,
        seeds=seeds,
        tolerance=tolerance,
        progress=not json,
    )
    if figure is not None:
        coordinate_figure(report, figure)
    if json:
        typer.echo(report.to_json())
    else:
        console = output_console()
        console.print(report.table(failures_only=not report.passed))
        for way in report.meta["trained"]:
            if "refused" in way:
                console.print(f"seeds were trained {way}", markup=False)
        for culprit in report.culprits[:8]:
            console.print(f"repair {culprit}", markup=False)
    if not report.passed:
        raise typer.Exit(1)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {text!r} is not allowed: needs whole numbers like 64,128,256") from error
