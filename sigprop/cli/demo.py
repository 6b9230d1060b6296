"""`sigprop demo`: the main job on an embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from sigprop.blueprints import predict
from sigprop.blueprints.laws import scaled_transformer
from sigprop.cli.console import output_console
from sigprop.report.figures import blocks, profile_figure
from sigprop.report.terminal import number
from sigprop.results import Profile

DEPTH = 48
SHOWN = (1, 2, 4, 8, 16, 24, 32, 40, 48)


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
) -> None:
    """Predict a 48-layer Transformer, Post-LN and Pre-LN, under Xavier and under DeepScale."""
    console = output_console()
    profiles = demo_profiles()
    console.print(f"{DEPTH}-layer Transformer encoder, width 256, 128 tokens, dropout 0.1\n")
    for name, profile in profiles.items():
        console.print(_table(name, profile))
    path = profile_figure(profiles, out / "demo.png", f"{DEPTH}-layer Transformer at initialization, predicted")
    console.print(_verdict(profiles))
    console.print(f"figure: {path}")


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
