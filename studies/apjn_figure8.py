"""apjn Fig. 8: chi_J of stacked attention layers without norm or residual, with and without mlp.

`python -m studies.apjn_figure8 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from sigprop.diagrams import measured_diagram
from sigprop.report.phase import Panel
from studies.apjn_shared import axis, progress, publish


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


if __name__ == "__main__":
    typer.run(main)
