"""`sigprop check`: what is wrong with a model's initialization, why, and the fix."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from sigprop.cli.console import SIGN, show, width
from sigprop.cli.options import Batch, Data, Json, Model, Seed, Settings, Tokens, hush, writable

LEVELS = ("problem", "warning", "note", "never")


def _level(text: str) -> str:
    if text not in LEVELS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(LEVELS)}")
    return text


def check_command(
    model: Model,
    settings: Settings = None,
    data: Data = None,
    text: Annotated[str | None, typer.Option(help="A text file to take tokens from; the same as --data.")] = None,
    batch: Batch = 1,
    tokens: Tokens = 128,
    html: Annotated[Path | None, typer.Option(callback=writable, help="Write the report to this HTML file.")] = None,
    fix: Annotated[Path | None, typer.Option(callback=writable, help="Write the fix, a plan, to this file.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan that the weights should carry.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Judge the first update of this optimizer.")] = None,
    lr: Annotated[float, typer.Option(help="Its learning rate.")] = 1e-3,
    fail_on: Annotated[
        str, typer.Option(callback=_level, help="Exit with 1 from this on: problem, warning, note, never.")
    ] = "warning",
    ignore: Annotated[
        list[str] | None, typer.Option(help="A finding to leave out, finding or finding:pattern; may be repeated.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="An earlier report (--json): what it holds is left out.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The weights and one pass: no theory, nothing tried.")] = False,
    json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Everything that was found, with evidence.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", callback=hush, help="The verdict alone.")] = False,
    seed: Seed = 0,
) -> None:
    """Diagnose a model's initialization. Exit code 1 when something is found."""
    from sigprop.checks import check, without
    from sigprop.cli.check_source import model_and_batch
    from sigprop.plans import Plan
    from sigprop.report.html import write_html

    source = model_and_batch(model, settings or [], data or text, batch, tokens, seed)
    given = None if plan is None else Plan.from_json(plan)
    options = {"tokens": tokens, "plan": given, "optimizer": optimizer, "lr": lr, "seed": seed, "quick": quick}
    report = check(source.model, source.batch, loss=source.loss, **options)
    report = without(report, ignore or [], baseline)
    if html is not None:
        write_html(report, html, "sigprop " + shlex.join(sys.argv[1:]))
    if fix is not None and report.plan is not None:
        report.plan.to_json(fix)
    if json:
        show(report.to_json())
    elif quiet:
        show(report.summary())
    else:
        SIGN.stop()
        typer.echo(report.text(verbose, width()))
        for path, what in ((html, "report"), (fix if report.plan is not None else None, "plan")):
            if path is not None:
                show(f"{what}: {path}")
    if fix is not None and report.plan is None and not json:
        typer.echo("no plan was needed: nothing was written to " + str(fix), err=True)
    if fail_on != "never" and report.fails(fail_on):
        raise typer.Exit(1)
