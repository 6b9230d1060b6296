"""apjn Fig. 4: phase diagrams of ResNet-110 with LayerNorm.

`python -m studies.apjn_figure4 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sigprop.diagrams import measured_diagram
from sigprop.report.phase import Panel
from studies.apjn_shared import axis, progress, publish


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


if __name__ == "__main__":
    typer.run(main)
