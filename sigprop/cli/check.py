"""`sigprop check`: what is wrong with a model's initialization, why, and the fix."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigprop.cli.options import SIGN, Batch, Data, Json, Model, Seed, Settings, Tokens, hush, show, width, writable

if TYPE_CHECKING:
    from torch import nn

    from sigprop.inputs import ModelSource


LARGEST = 600_000_000
"""Parameters of a model whose weights are made: 2.4 GB in float32."""
LEVELS = ("problem", "warning", "note", "never")


def _level(text: str) -> str:
    if text not in LEVELS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(LEVELS)}")
    return text


def _built(source: ModelSource, seed: int) -> nn.Module:
    """A model with its weights, made with the seed, unless they would be too many."""
    import torch

    from sigprop.distributions import build

    if source.fixed:
        return source.build()
    skeleton = build(source.build)
    if sum(parameter.numel() for parameter in skeleton.parameters()) > LARGEST:
        return skeleton
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return source.build()


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
    """Diagnose a model's initialization. Exit code 1 when something is found.

    For example: sigprop check model.py:GPT --html report.html
    """
    from sigprop.checks import check, without
    from sigprop.inputs import open_source, parse_settings
    from sigprop.plans import Plan
    from sigprop.report.html import write_html

    source = open_source(model, parse_settings(settings or []), data or text, batch, tokens)
    given = None if plan is None else Plan.from_json(plan)
    options = {"tokens": tokens, "plan": given, "optimizer": optimizer, "lr": lr, "seed": seed, "quick": quick}
    report = check(_built(source, seed), source.batch, loss=source.loss, **options)
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
        why = "nothing to fix" if report.healthy else "no plan fixes what was found"
        typer.echo(f"{why}: {fix} was not written", err=True)
    if fail_on != "never" and report.fails(fail_on):
        raise typer.Exit(1)
