"""apjn Fig. 2: measured phase diagrams of MLPs with critical lines and points from theory.

`python -m studies.apjn_figure2 --device cuda`. L = 50, N = 500, 40 x 40 points, 100 initializations.
"""

from __future__ import annotations

import time
from pathlib import Path

import typer

from sigprop.diagrams import overlays
from sigprop.measure.grid import Network
from sigprop.measure.phase import mlp_phase
from sigprop.report.phase import Overlay, Panel
from sigprop.theory.criticality import architecture
from studies.apjn_shared import axis, progress, publish

ACTIVATIONS = ("relu", "erf", "gelu")
COLUMNS = (("none", 0.0), ("none", 1.0), ("preactivation", 0.0), ("preactivation", 0.9), ("preactivation", 1.0))


def main(
    device: str = "cpu",
    initializations: int = 100,
    points: int = 40,
    depth: int = 50,
    width: int = 500,
    precision: str = "float32",
    out: Path = Path("docs"),
) -> None:
    """Fifteen diagrams: ReLU, erf, GELU without and with LayerNorm on pre-activations, at several mu."""
    x, y = ("sigma_w", axis(0.1, 3.0, points)), ("sigma_b", axis(0.0, 1.5, points))
    panels, begin = [], time.perf_counter()
    for activation in ACTIVATIONS:
        for norm, mu in COLUMNS:
            title = f"{activation}{', LN' if norm != 'none' else ''}, mu = {mu:g}"
            diagram = mlp_phase(
                Network(activation, norm, depth, width, precision=precision), x, y, {"residual": mu},
                initializations=initializations, device=device, progress=progress(title),
            )  # fmt: skip
            above = overlays(activation, norm, x, y, {"residual": mu})["overlays"]
            if norm == "preactivation" and mu == 1:
                ray = architecture(activation, norm).ray()  # type: ignore[union-attr]
                above = [Overlay([0, 3.5], [0, 3.5 * ray], "dotted")]
            panels.append(Panel(title, diagram, above))
    seconds = time.perf_counter() - begin
    print(f"{len(panels)} diagrams in {seconds:.1f} s, {seconds / len(panels):.2f} s each")
    publish("apjn_figure2", panels, out, initializations, points, columns=len(COLUMNS))


if __name__ == "__main__":
    typer.run(main)
