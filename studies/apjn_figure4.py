"""apjn Fig. 4: phase diagrams of ResNet-110 with LayerNorm.

`python -m studies.apjn_figure4 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sigprop.research.phase.diagrams import measured_diagram
from sigprop.research.phase.figure import Panel
from studies.apjn_shared import axis, progress, publish, share_critical, spread_of
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict


def main(
    device: str = "cpu", initializations: int = 20, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Over (sigma_w, sigma_b) at mu = 1, and over (sigma_w, mu) at sigma_b = 0."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    panels = resnet_panels("layer_norm", "ResNet-110, LayerNorm", points, run)
    publish("apjn_figure4", panels, out, initializations, points)


def resnet_panels(norm: str, title: str, points: int, run: dict[str, Any]) -> list[Panel]:
    """The planes (sigma_w, sigma_b) at mu = 1 and (sigma_w, mu) at sigma_b = 0 of ResNet-110."""
    weights, biases, strengths = axis(0.2, 3.0, points), axis(0.0, 1.5, points), axis(0.0, 1.0, points)
    planes = (
        ("mu = 1", ("sigma_b", biases), {"residual": 1.0}),
        ("sigma_b = 0", ("residual", strengths), {"sigma_b": 0.0}),
    )
    panels = []
    for label, y, fixed in planes:
        diagram = measured_diagram(
            "resnet", ("sigma_w", weights), y, fixed, {"norm": norm}, progress=progress(label), **run
        )
        panels.append(Panel(f"{title}, {label}", diagram))
    return panels


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 1, "points": 2}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure4.json")


def judge_resnet(data: dict[str, Any], below: str, trained: str) -> Judgement:
    """`below`: the phase that the paper finds below mu = 1. `trained`: what became of the trained panels."""
    plane, strengths = data["panels"]
    share = share_critical(plane)
    rows = (
        Row("mu = 1: chi_J over (sigma_w, sigma_b)", "1", spread_of(plane)),
        Row("mu = 0, sigma_b = 0: chi_J over sigma_w", below, spread_of(strengths, 0)),
        Row("mu = 1, sigma_b = 0: chi_J over sigma_w", "1", spread_of(strengths, -1)),
    )
    why = f"At mu = 1 chi_J is 1 within 6 % at {share:.0%} of the points. Trained panels: {trained}."
    return Judgement(verdict(share == 1, share > 0.5), why, rows)


REPRODUCTION = Reproduction(
    id="apjn-figure4",
    paper="apjn",
    place="Fig. 4 (1) and (2)",
    claim="ResNet-110 with LayerNorm is critical everywhere at mu = 1 and ordered below it.",
    run=run,
    judge=lambda data: judge_resnet(data, "below 1", "an item of their own"),
    minutes=(3, 4),
    earlier="apjn_figure4.json",
)


if __name__ == "__main__":
    typer.run(main)
