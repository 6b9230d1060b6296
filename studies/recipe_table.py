"""All recipes on one deep model, predicted: `python -m studies.recipe_table --help`.

dslm Table 3 with numbers instead of orders: growth of the variance along the residual stream, growth of the gradient
from the last sum to the first, token correlation at the end, and sensitivity (the variance that branches add,
relative to the skip, summed). Every recipe starts with unit variance. Prints the table and writes
`docs/data/recipe_table.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sigprop.errors import SigpropError
from sigprop.models import build
from sigprop.models.data import sample_text, text_batch
from sigprop.plans.recipes import RECIPES, read_structure
from sigprop.plans.recipes.planned_states import predict_plan
from studies.recipes_shared import DATA
from studies.stored import read, write

COLUMNS = ("forward_growth", "gradient_growth", "token_correlation", "sensitivity")
OPTIONS: dict[str, dict[str, Any]] = {"critical": {"probes": 1}}


def main(
    depth: int = 192,
    width: int = 256,
    tokens: int = 64,
    placements: str = "post,pre,none",
    names: Annotated[str, typer.Option(help="Comma-separated recipes; all by default.")] = "",
    skip: Annotated[str, typer.Option(help="Recipes to leave out.")] = "",
    out: Path = DATA / "recipe_table.json",
) -> None:
    """Predict every recipe that applies to each norm placement."""
    command = "python -m studies.recipe_table " + " ".join(sys.argv[1:])
    results = read(out, {"results": {}})["results"]
    chosen = names.split(",") if names else [name for name in RECIPES if name not in skip.split(",")]
    ids = text_batch(sample_text(), 1, tokens)
    for placement in placements.split(","):
        model = build(
            "transformer", kind="encoder", norm_placement=placement, depth=depth, width=width, activation="relu"
        )
        structure = read_structure(model, ids)
        for name in chosen:
            key = f"{placement} {name}"
            try:
                found = predict_plan(structure, name, unit_start=True, **OPTIONS.get(name, {})).to_dict()
                found = {key: value for key, value in found.items() if value is not None and key != "profile"}
            except SigpropError as error:
                found = {"recipe": name, "refused": str(error)}
            results[key] = found | {"depth": depth, "width": width, "tokens": tokens, "command": command}
            typer.echo(line(placement, found))
            write(out, {"results": results})


def line(placement: str, found: dict[str, Any]) -> str:
    """One row of the table in Markdown."""
    if "refused" in found:
        return f"| {placement} | {found['recipe']} | {found['refused']} |||"
    return f"| {placement} | {found['recipe']} | " + " | ".join(cells(found, COLUMNS)) + " |"


def cells(found: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Numbers as text; empty where there is none."""
    return [f"{found[key]:.3g}" if key in found else "" for key in keys]


if __name__ == "__main__":
    typer.run(main)
