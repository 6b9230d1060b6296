"""apjn Fig. 8: chi_J of stacked attention layers without norm or residual, with and without mlp.

`python -m studies.apjn_figure8 --device cuda`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import typer

from sigprop.research.phase.diagrams import measured_diagram
from sigprop.research.phase.figure import Panel
from studies.apjn_shared import axis, progress, publish, spread_of
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict


def main(
    device: str = "cpu", initializations: int = 20, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Over (sigma_w, sigma_b) at mu = 0; values span tens of orders of magnitude."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    x, y = ("sigma_w", axis(0.2, 3.0, points)), ("sigma_b", axis(0.0, 1.5, points))
    panels = []
    for mlp in (True, False):
        label = f"attention{' and mlp' if mlp else ''}, no norm, mu = 0"
        settings = {"norm_placement": "none", "mlp": mlp}
        diagram = measured_diagram("vit", x, y, {"residual": 0.0}, settings, progress=progress(label), **run)
        panels.append(Panel(label, diagram))
    publish("apjn_figure8", panels, out, initializations, points, limit=10.0)


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 1, "points": 3}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure8.json")


def judge(data: dict[str, Any]) -> Judgement:
    rows, orders = [], []
    for panel in data["panels"]:
        told = f"attention{' and mlp' if panel['settings']['mlp'] else ''}: chi_J over the plane"
        rows.append(Row(told, "about 50 orders of magnitude", spread_of(panel)))
        values = [value for row in panel["chi"] for value in row if value]
        orders.append(math.log10(max(values) / min(values)))
    why = f"The values span {min(orders):.0f} and {max(orders):.0f} orders of magnitude, as far as 32-bit floats reach."
    return Judgement(verdict(min(orders) > 30, min(orders) > 10), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="apjn-figure8",
    paper="apjn",
    place="Fig. 8",
    claim="Stacked attention without norm or skip has factors over some 50 orders of magnitude.",
    run=run,
    judge=judge,
    minutes=(3, 2),
    earlier="apjn_figure8.json",
)


if __name__ == "__main__":
    typer.run(main)
