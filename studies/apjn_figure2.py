"""apjn Fig. 2: measured phase diagrams of MLPs with critical lines and points from theory.

`python -m studies.apjn_figure2 --device cuda`. L = 50, N = 500, 40 x 40 points, 100 initializations.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from sigprop.research.criticality import architecture
from sigprop.research.phase.diagrams import mlp_phase, overlays
from sigprop.research.phase.figure import Overlay, Panel
from sigprop.research.phase.networks import Network
from studies.apjn_shared import axis, progress, publish, share_critical, spread_of
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict

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


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 3, "points": 6, "width": 100}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure2.json")


def judge(data: dict[str, Any]) -> Judgement:
    rows, shares = [], []
    for panel in data["panels"]:
        settings = panel["settings"]
        if settings["norm"] == "preactivation" and settings["residual"] == 1:
            rows.append(
                Row(f"{settings['activation']}, LayerNorm, mu = 1: chi_J over the plane", "1", spread_of(panel))
            )
            shares.append(share_critical(panel))
        if settings["activation"] == "erf" and settings["norm"] == "none":
            what = f"erf, no norm, mu = {settings['residual']:g}: chi_J over the plane"
            rows.append(Row(what, "just above 1" if settings["residual"] else "both phases", spread_of(panel)))
    why = f"With LayerNorm and mu = 1, {min(shares):.0%} of the points have chi_J = 1 within 6 %; all lie above 1."
    return Judgement(verdict(min(shares) == 1, min(shares) > 0.5), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="apjn-figure2",
    paper="apjn",
    place="Fig. 2",
    claim="MLPs of 50 layers have critical lines and points where theory puts them; with LayerNorm and mu = 1 chi_J is "
    "1 on the whole plane.",
    run=run,
    judge=judge,
    minutes=(2, 1),
    earlier="apjn_figure2.json",
)


if __name__ == "__main__":
    typer.run(main)
