"""apjn Fig. 5: phase diagrams of the MLP-Mixer, 30 blocks.

`python -m sigprop.experiments.apjn_figure5 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from sigprop.experiments.apjn_networks import measured_diagram
from sigprop.experiments.apjn_shared import axis, progress, publish
from sigprop.report.phase import Panel


def main(
    device: str = "cpu", initializations: int = 20, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Over (sigma_w, sigma_b) at mu = 0.5 and mu = 1."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    x, y = ("sigma_w", axis(0.2, 3.0, points)), ("sigma_b", axis(0.0, 1.5, points))
    panels = []
    for mu in (0.5, 1.0):
        label = f"Mixer, mu = {mu:g}"
        diagram = measured_diagram("mixer", x, y, {"residual": mu}, {}, progress=progress(label), **run)
        panels.append(Panel(label, diagram, contour=diagram))
    publish("apjn_figure5", panels, out, initializations, points)


if __name__ == "__main__":
    typer.run(main)
