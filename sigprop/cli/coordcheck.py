"""`sigprop coordcheck`: do activations, updates and weights scale as they should with width and depth?"""

from __future__ import annotations

from typing import Annotated

import typer

from sigprop.cli.options import Everything, Figure, Json, Model, Quiet, Settings, show
from sigprop.errors import InputError, require


def coordcheck_command(
    model: Model,
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
    steps: Annotated[int, typer.Option(min=1, max=2**24, help="Training steps.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, max=2**24, help="Initializations at every width.")] = 3,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest allowed deviation of an exponent.")] = 0.2,
    settings: Settings = None,
    all: Everything = False,
    quiet: Quiet = False,
    json: Json = False,
    figure: Figure = None,
) -> None:
    """Train a few steps at several widths and judge every exponent. Exit code 1 when the check fails."""
    require(lr is None or lr > 0, "--lr", lr, "a learning rate above 0")
    sizes, deep = _numbers("--widths", widths), _numbers("--depths", depths) if depths else None

    from sigprop.inputs import open_family, parse_settings
    from sigprop.plans.scaling import coord_check

    family = open_family(model, parse_settings(settings or []))
    report = coord_check(
        family.build,
        sizes,
        deep,
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
        progress=not (json or quiet),
    )
    if figure is not None:
        report.plot(figure)
    if json:
        show(report.to_json())
    else:
        show(report.summary(), "", report.table(all))
    if not report.passed:
        raise typer.Exit(1)


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {text!r} is not allowed: needs whole numbers like 64,128,256") from error
    require(min(found) > 0, option, text, "sizes above 0")
    return found
