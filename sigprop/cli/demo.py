"""`sigprop demo`: the main job on an embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from torch import Tensor, nn

from sigprop.blueprints import predict
from sigprop.blueprints.laws import scaled_transformer
from sigprop.cli.console import output_console
from sigprop.measure import measure
from sigprop.models import build, encode, sample_text
from sigprop.recipes import plan as plan_recipe
from sigprop.report.figures import blocks, profile_figure
from sigprop.report.terminal import number
from sigprop.results import Profile
from sigprop.trace import predict as predict_model

DEPTH = 48
REAL_DEPTH, CONTEXT, SEEDS = 24, 64, 4
SHOWN = (1, 2, 4, 8, 16, 24, 32, 40, 48)


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
) -> None:
    """Predict 48-layer Transformers under two initializations; then predict, measure and plan a real model."""
    console = output_console()
    profiles = demo_profiles()
    console.print(f"{DEPTH}-layer Transformer encoder, width 256, 128 tokens, dropout 0.1\n")
    for name, profile in profiles.items():
        console.print(_table(name, profile))
    path = profile_figure(profiles, out / "demo.png", f"{DEPTH}-layer Transformer at initialization, predicted")
    console.print(_verdict(profiles))
    console.print(f"figure: {path}\n")
    console.print(
        f"a real {REAL_DEPTH}-layer Post-LN decoder, width 128: predicted / measured over {SEEDS} initializations"
    )
    console.print(_real_model())


def demo_profiles() -> dict[str, Profile]:
    return {
        f"{placement.capitalize()}-LN, {scheme}": predict(
            scaled_transformer(scaling, DEPTH, dropout=0.1, norm_placement=placement)
        )
        for placement in ("post", "pre")
        for scheme, scaling in {"Xavier": "vanilla", "DeepScale": "deepscale"}.items()
    }


def gradient_ratio(profile: Profile) -> float:
    """Gradient variance at the first block over that at the last."""
    rows = blocks(profile)
    return rows[0].grad_variance / rows[-1].grad_variance


def _real_model() -> Table:
    """A decoder as torch runs it, under two plans: theory beside measurement."""
    ids = encode(sample_text())[None, : CONTEXT + 1]
    inputs, targets = ids[:, :-1], ids[:, 1:].flatten()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("plan", "token corr. at the end", "gradient, first / last"):
        table.add_column(heading, justify="left" if heading == "plan" else "right")

    def model() -> nn.Module:
        shape = {"depth": REAL_DEPTH, "width": 128, "heads": 4, "context": CONTEXT}
        return build("transformer", kind="decoder", norm_placement="post", **shape)

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    for recipe in ("xavier", "unit"):
        plan = plan_recipe(model(), recipe, batch=inputs)
        found = (
            predict_model(plan.apply_(model()), inputs, loss=loss),
            measure(None, inputs, loss, build=lambda plan=plan: plan.apply_(model()), seeds=SEEDS),
        )
        ends = " / ".join(f"{blocks(profile)[-1].token_correlation:.3f}" for profile in found)
        ratios = " / ".join(number(gradient_ratio(profile)) for profile in found)
        table.add_row(recipe, ends, ratios)
    return table


def _verdict(profiles: dict[str, Profile]) -> Table:
    table = Table(title="end to end", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("stack", "variance, last / first", "gradient, first / last"):
        table.add_column(heading, justify="left" if heading == "stack" else "right")
    for name, profile in profiles.items():
        rows = blocks(profile)
        table.add_row(name, number(rows[-1].variance / rows[0].variance), number(gradient_ratio(profile)))
    return table


def _table(name: str, profile: Profile) -> Table:
    table = Table(title=name, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("block", "variance", "token corr.", "grad variance", "grad corr.", "status"):
        table.add_column(heading, justify="right")
    rows = blocks(profile)
    for index in SHOWN:
        row = rows[index - 1]
        values = (row.variance, row.token_correlation, row.grad_variance, row.grad_token_correlation)
        table.add_row(str(index), *(number(value) for value in values), row.status)
    return table
