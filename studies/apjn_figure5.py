"""apjn Fig. 5: phase diagrams of the MLP-Mixer, 30 blocks.

`python -m studies.apjn_figure5 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sigprop.research.phase.diagrams import measured_diagram
from sigprop.research.phase.figure import Overlay, Panel
from sigprop.research.phase.predicted import blueprint_line
from studies.apjn_shared import axis, progress, publish, share_critical, spread_of
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict

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


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 1, "points": 3}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure5.json")


def judge(data: dict[str, Any]) -> Judgement:
    half, whole = data["panels"]
    rows = (
        Row("mu = 0.5: chi_J over (sigma_w, sigma_b)", "both phases", spread_of(half)),
        Row("mu = 1: chi_J over (sigma_w, sigma_b)", "1", spread_of(whole)),
    )
    share = share_critical(whole)
    why = f"At mu = 1 chi_J is 1 within 6 % at {share:.0%} of the points. Trained panels: an item of their own."
    return Judgement(verdict(share == 1, share > 0.5), why, rows)


REPRODUCTION = Reproduction(
    id="apjn-figure5",
    paper="apjn",
    place="Fig. 5 (1) and (2)",
    claim="The MLP-Mixer has a phase boundary at mu = 0.5 and is critical everywhere at mu = 1.",
    run=run,
    judge=judge,
    minutes=(3, 4),
    earlier="apjn_figure5.json",
)


if __name__ == "__main__":
    typer.run(main)
