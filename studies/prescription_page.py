"""Tables and figures of the training study: `python -m studies.prescription_page`.

Reads `docs/data/prescription_training.json` and `prescription_long.json`, prints the tables of the evidence page and
writes the figures.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
SCHEMES = {"default": "own init", "mup": "muP", "mup+linear": "muP, 1/depth", "ours": "unit + mup"}
OPTIMIZERS = {"adamw": "AdamW", "momentum": "SGD, momentum 0.9", "muon:rms": "Muon"}
Size = tuple[str, int, int]
Curves = dict[Size, dict[str, dict[float, list[float]]]]


def curves(optimizer: str = "adamw") -> Curves:
    """Final losses over seeds by family and size, scheme and rate."""
    found: Curves = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in json.loads((DOCS / "data/prescription_training.json").read_text())["rows"]:
        if row.get("optimizer", "adamw") != optimizer:
            continue
        size = (row["family"], row["layers"], row["width"])
        found[size][row["scheme"]][row["rate"]].append(row["last"])
    return found


def best(rates: dict[float, list[float]]) -> tuple[float, list[float]]:
    """The rate with the lowest mean loss, and its losses."""
    rate = min(rates, key=lambda rate: sum(rates[rate]) / len(rates[rate]))
    return rate, rates[rate]


def cell(rates: dict[float, list[float]] | None) -> str:
    if not rates:
        return ""
    rate, losses = best(rates)
    mean = sum(losses) / len(losses)
    spread = f" ± {math.sqrt(sum((x - mean) ** 2 for x in losses) / (len(losses) - 1)):.3f}" if len(losses) > 1 else ""
    edge = "*" if rate in (min(rates), max(rates)) else ""
    return f"{mean:.3f}{spread} at 2^{math.log2(rate):.0f}{edge}"


def table(found: Curves) -> str:
    lines = [
        "| model | layers | width | " + " | ".join(SCHEMES.values()) + " |",
        "|---|---|---|" + "---|" * len(SCHEMES),
    ]
    for (family, layers, width), schemes in sorted(found.items()):
        cells = [cell(schemes.get(scheme)) for scheme in SCHEMES]
        lines.append(f"| {family} | {layers} | {width} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(found: Curves, path: Path) -> None:
    """Loss against learning rate of all Llamas: one panel per scheme, one line per size."""
    sizes = sorted(size for size in found if size[0] == "llama")
    shown = {"default": "the model's own initialization", "ours": 'sp.plan(model, "unit", width="mup")'}
    drawing = Figure(figsize=(9, 4), layout="constrained")
    for axis, (scheme, title) in zip(drawing.subplots(1, 2, sharey=True), shown.items(), strict=True):
        for _, layers, width in sizes:
            rates = found["llama", layers, width].get(scheme, {})
            points = sorted((rate, sum(losses) / len(losses)) for rate, losses in rates.items())
            colour = f"C{(4, 16, 64).index(layers)}"
            shade = {128: 0.3, 256: 0.5, 512: 0.75, 1024: 1.0}[width]
            label = f"{layers} layers, width {width}"
            axis.plot(*zip(*points, strict=True), marker=".", color=colour, alpha=shade, label=label)
        axis.set_xscale("log", base=2)
        axis.set(title=title, xlabel="learning rate", ylim=(1.1, 2.6))
        axis.label_outer()
    drawing.axes[0].set_ylabel("loss of the last 30 of 300 steps")
    drawing.legend(*drawing.axes[1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    drawing.savefig(path, dpi=150)


def long_runs() -> list[dict[str, Any]]:
    return json.loads((DOCS / "data/prescription_long.json").read_text())["rows"]


def long_figure(path: Path) -> None:
    """Loss against step of the runs of 3,000 steps, with those that were cut."""
    colours = {"default": "C3", "mup": "C1", "ours": "C0"}
    drawing = Figure(figsize=(9, 3.6), layout="constrained")
    for axis, (layers, width) in zip(drawing.subplots(1, 2, sharey=True), ((12, 512), (48, 256)), strict=True):
        for row in (row for row in long_runs() if row["layers"] == layers):
            steps = [50 * (place + 1) for place in range(len(row["curve"]))]
            label = SCHEMES[row["scheme"]] if row["seed"] == 0 else None
            axis.plot(steps, row["curve"], color=colours[row["scheme"]], lw=0.9, label=label)
        axis.set(title=f"{layers} layers, width {width}", xlabel="step", ylim=(0.65, 1.6))
        axis.legend(frameon=False)
        axis.label_outer()
    drawing.axes[0].set_ylabel("training loss, means over 50 steps")
    drawing.savefig(path, dpi=150)


def main() -> None:
    for optimizer, name in OPTIMIZERS.items():
        print(f"\n{name}\n\n{table(curves(optimizer))}")
    figure(curves(), DOCS / "figures/prescription_training.png")
    long_figure(DOCS / "figures/prescription_long.png")


if __name__ == "__main__":
    main()
