"""apjn Fig. 7: phase diagrams of a ViT, pre- and post-LN, with and without mlp, 24 blocks of width 256.

`python -m studies.apjn_figure7 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sigprop.research.phase.diagrams import SIZES, measured_diagram
from sigprop.research.phase.figure import Panel
from sigprop.research.phase.predicted import blueprint_diagram
from studies.apjn_shared import axis, progress, publish, share_critical, spread_of
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict


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


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 1, "points": 3}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure7.json")


def judge(data: dict[str, Any]) -> Judgement:
    rows = []
    for panel in data["panels"]:
        settings = panel["settings"]
        told = f"{settings['norm_placement']}-LN{'' if settings['mlp'] else ', no mlp'}, mu = 1: chi_J over sigma_w"
        rows.append(Row(told, "1" if settings["norm_placement"] == "pre" else "below 1", spread_of(panel, -1)))
    pre, post = data["panels"][:2]
    share, ordered = share_critical(pre, -1), max(value for row in post["chi"] for value in row if value is not None)
    most = max(pre["chi"][-1])
    why = (
        f"Pre-LN at mu = 1 has chi_J = 1 within 6 % at {share:.0%} of the points, elsewhere at most {most:.2f}. "
        f"Post-LN stays ordered (largest chi_J {ordered:.3f})."
    )
    return Judgement(verdict(share > 0.9 and ordered < 1, share > 0.5 and ordered < 1), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="apjn-figure7",
    paper="apjn",
    place="Fig. 7",
    claim="A Pre-LN ViT is critical everywhere at mu = 1 and ordered below; a Post-LN one is always ordered.",
    run=run,
    judge=judge,
    minutes=(4, 5),
    earlier="apjn_figure7.json",
)


if __name__ == "__main__":
    typer.run(main)
