"""apjn Fig. 5: phase diagrams of the MLP-Mixer, 30 blocks.

`python -m studies.apjn_figure5 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from sigprop.blueprints.criticality import blueprint_line
from sigprop.diagrams import measured_diagram
from sigprop.report.phase import Overlay, Panel
from studies.apjn_shared import axis, progress, publish

LINE = ((0.2, 1.0, 2.0, 3.0), (0.1, 0.3, 0.6, 0.9, 1.2, 1.5))  # where theory looks for the line: sigma_w, sigma_b


def main(
    device: str = "cpu", initializations: int = 20, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Over (sigma_w, sigma_b) at mu = 0.5 and mu = 1, with the measured line chi_J = 1 and, dotted, that of theory."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    x, y = ("sigma_w", axis(0.2, 3.0, points)), ("sigma_b", axis(0.0, 1.5, points))
    panels = []
    for mu in (0.5, 1.0):
        label = f"Mixer, mu = {mu:g}"
        diagram = measured_diagram("mixer", x, y, {"residual": mu}, {}, progress=progress(label), **run)
        panels.append(Panel(label, diagram, contour=diagram))
    line = blueprint_line("mixer", ("sigma_w", LINE[0]), ("sigma_b", LINE[1]), {"residual": 0.5}, {"depth": 10})
    panels[0].overlays.append(Overlay([w for w, _ in line], [b for _, b in line], "dotted"))
    publish("apjn_figure5", panels, out, initializations, points)


if __name__ == "__main__":
    typer.run(main)
