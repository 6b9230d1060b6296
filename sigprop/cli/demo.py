"""`sigprop demo`: a model that cannot train, what is wrong with it, and the same model under the fix."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Annotated

import typer

from sigprop.cli.options import SIGN, show, width, writable

if typing.TYPE_CHECKING:
    from torch import nn

DEPTH, WIDTH, HEADS, TOKENS = 24, 64, 4, 64


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the report and the plan.")] = Path("out"),
) -> None:
    """Check a broken model, apply the fix, check it again.

    The model is a deep Post-LN Transformer that cannot train.
    """
    import torch

    from sigprop.checks import check
    from sigprop.report.html import write_html

    page, plan = writable(out / "report.html"), writable(out / "plan.json")
    assert page is not None
    assert plan is not None
    model = failing_model()
    show(f"A {DEPTH}-layer Post-LN Transformer encoder, width {WIDTH}, Xavier: can it train?", "")
    report = check(model)
    SIGN.stop()
    typer.echo(report.text(width=width()))
    write_html(report, page, "sigprop demo")
    if report.plan is None:
        return
    report.plan.to_json(plan)
    show("", "The same model with the plan applied, checked again:", "")
    report.plan.apply_(model, torch.Generator().manual_seed(1))
    typer.echo(check(model, prescription=False).text(width=width()))
    show("", f"report: {page}", f"plan: {plan}")


def failing_model() -> nn.Module:
    """Deep, Post-LN, Xavier: tokens become correlated long before the last layer."""
    import torch

    from sigprop.models import build
    from sigprop.models.layers import initialize_

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = {"depth": DEPTH, "width": WIDTH, "heads": HEADS, "context": TOKENS}
        model = build("transformer", kind="encoder", norm_placement="post", **shape)
        return initialize_(model, "xavier", embedding_std=1.0)
