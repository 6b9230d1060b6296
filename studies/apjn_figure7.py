"""apjn Fig. 7: phase diagrams of a ViT, pre- and post-LN, with and without mlp, 24 blocks of width 256.

`python -m studies.apjn_figure7 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from sigprop.blueprints.criticality import blueprint_diagram
from sigprop.diagrams import SIZES, measured_diagram
from sigprop.report.phase import Panel
from studies.apjn_shared import axis, progress, publish


def main(
    device: str = "cpu", initializations: int = 20, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Four panels over (sigma_w, mu) at sigma_b = 0, with the line chi_J = 1 of theory where the blocks have an mlp."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    x, y = ("sigma_w", axis(0.2, 3.0, points)), ("residual", axis(0.0, 1.0, points))
    panels = []
    for mlp in (True, False):
        for placement in ("pre", "post"):
            label = f"ViT, {placement}-LN{'' if mlp else ', no mlp'}"
            settings = {"norm_placement": placement, "mlp": mlp}
            diagram = measured_diagram("vit", x, y, {"sigma_b": 0.0}, settings, progress=progress(label), **run)
            theory = blueprint_diagram("vit", x, y, {"sigma_b": 0.0}, {**SIZES["vit"], "norm_placement": placement})
            panels.append(Panel(label, diagram, contour=theory if mlp else None))
    publish("apjn_figure7", panels, out, initializations, points)


if __name__ == "__main__":
    typer.run(main)
