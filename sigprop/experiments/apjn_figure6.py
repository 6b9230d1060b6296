"""apjn Fig. 6: phase diagrams of ResNet-110 with BatchNorm.

`python -m sigprop.experiments.apjn_figure6 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from sigprop.experiments.apjn_networks import measured_diagram
from sigprop.experiments.apjn_shared import axis, progress, store
from sigprop.report.phase import Panel, phase_figure


def main(
    device: str = "cpu", initializations: int = 10, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Over (sigma_w, sigma_b) at mu = 1, and over (sigma_w, mu) at sigma_b = 0; batches of 32."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    weights, biases, strengths = axis(0.2, 3.0, points), axis(0.0, 1.5, points), axis(0.0, 1.0, points)
    planes = (
        ("mu = 1", ("sigma_b", biases), {"residual": 1.0}),
        ("sigma_b = 0", ("residual", strengths), {"sigma_b": 0.0}),
    )
    panels = []
    for label, y, fixed in planes:
        diagram = measured_diagram(
            "resnet", ("sigma_w", weights), y, fixed, {"norm": "batch_norm"}, progress=progress(label), **run
        )
        panels.append(Panel(f"ResNet-110, BatchNorm, {label}", diagram))
    command = f"python -m sigprop.experiments.apjn_figure6 --initializations {initializations} --points {points}"
    store("apjn_figure6", command, out, [panel.diagram for panel in panels])
    phase_figure(panels, out / "figures" / "apjn_figure6.png", columns=2, limit=2.0)


if __name__ == "__main__":
    typer.run(main)
