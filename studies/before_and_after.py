"""The picture of the start page: `python -m studies.before_and_after`.

A 48-layer Post-LN decoder of width 128 under Xavier and under `unit`, predicted (lines) and measured over
initializations (points, with standard errors). Writes docs/data/before_and_after.json and the figure of that name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure
from torch import Tensor, nn

from sigprop import measure, plan, predict
from sigprop.models import build, encode, sample_text
from sigprop.results import Profile
from sigprop.results.profile import streams
from studies.stored import stamp, write

DEPTH, WIDTH, HEADS, CONTEXT = 48, 128, 4, 32
RECIPES = {"xavier": ("as usual (Xavier)", "#c2571a"), "unit": ("with a plan (unit)", "#0b5fa5")}
COLUMNS = {"token_correlation": "token correlation", "grad_variance": "gradient variance, last block = 1"}


def main(
    seeds: Annotated[int, typer.Option(help="Initializations that are measured.")] = 8,
    data: Path = Path("docs/data/before_and_after.json"),
    figure: Path = Path("docs/figures/before_and_after.png"),
) -> None:
    """Predict, measure, store and draw."""
    ids = encode(sample_text())[None, : CONTEXT + 1]
    inputs, targets = ids[:, :-1], ids[:, 1:].flatten()

    def make() -> nn.Module:
        sizes = {"depth": DEPTH, "width": WIDTH, "heads": HEADS, "context": CONTEXT}
        return build("transformer", kind="decoder", norm_placement="post", **sizes)

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    found: dict[str, Any] = {}
    for name in RECIPES:
        made = plan(make(), name, batch=inputs)
        measured = measure(None, inputs, loss, build=lambda made=made: made.apply_(make()), seeds=seeds)
        found[name] = {
            "predicted": _rows(predict(made.apply_(make()), inputs, loss=loss, verify=0)),
            "measured": _rows(measured),
        }
    write(data, stamp(f"before_and_after --seeds {seeds}", results=found))
    draw(found, figure)


def _rows(profile: Profile) -> list[dict[str, float]]:
    rows = next(iter(streams(profile.sites).values()))
    return [
        {column: getattr(row, column) for column in COLUMNS}
        | {f"{column}_error": row.errors.get(column, 0.0) for column in COLUMNS}
        for row in rows
    ]


def draw(found: dict[str, Any], path: Path) -> None:
    picture = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axis, (column, label) in zip(picture.subplots(1, 2), COLUMNS.items(), strict=True):
        for name, (title, colour) in RECIPES.items():
            for kind, rows in found[name].items():
                scale = rows[-1][column] if column == "grad_variance" else 1.0
                x = range(1, len(rows) + 1)
                y = [row[column] / scale for row in rows]
                if kind == "predicted":
                    axis.plot(x, y, color=colour, linewidth=1.6, label=f"{title}, predicted")
                else:
                    errors = [row[f"{column}_error"] / scale for row in rows]
                    axis.errorbar(
                        x, y, errors, fmt="o", markersize=2.5, linewidth=0.8, color=colour, label=f"{title}, measured"
                    )
        axis.set_title(label, fontsize=10, loc="left")
        axis.set_xlabel("block")
        axis.set_yscale("log" if column == "grad_variance" else "linear")
        axis.grid(True, color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    handles, names = picture.axes[0].get_legend_handles_labels()
    picture.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    picture.suptitle(f"A {DEPTH}-layer Post-LN decoder at initialization", fontsize=12, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=150)


if __name__ == "__main__":
    typer.run(main)
