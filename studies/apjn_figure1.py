"""apjn Fig. 1: the partial Jacobian J^{0,l} over depth, at criticality.

`python -m studies.apjn_figure1 --device cuda`. Power laws: erf l^-1, ReLU constant, pre-LN with mu = 1
l^(A/B). Width 1000, 100 initializations (paper's setting).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import typer

from sigprop.research.criticality import architecture, trajectory
from sigprop.research.phase.diagrams import mlp_jacobians
from sigprop.research.phase.figure import DepthCurve, curves_figure
from sigprop.research.phase.networks import Network
from studies.apjn_shared import progress, rounded, store
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict

CASES = {
    "erf": ("erf", "none", 0.0, math.sqrt(math.pi / 4), 250),
    "ReLU": ("relu", "none", 0.0, math.sqrt(2), 100),
    "erf, pre-LN, mu = 1": ("erf", "preactivation", 1.0, math.sqrt(2), 250),
    "GELU, pre-LN, mu = 1": ("gelu", "preactivation", 1.0, math.sqrt(2), 250),
}


def main(device: str = "cpu", initializations: int = 100, width: int = 1000, out: Path = Path("docs")) -> None:
    """Measure, predict, fit the slopes at l > 100, draw."""
    panels, rows = [], []
    for label, (activation, norm, mu, sigma_w, depth) in CASES.items():
        network = Network(activation, norm, depth, width)
        point = (torch.tensor([sigma_w]), torch.tensor([0.0]))
        average = mlp_jacobians(
            network, *point, mu, initializations=initializations, device=device, progress=progress(label)
        )
        run = trajectory(architecture(activation, norm, mu), sigma_w, 0.0, depth)
        predicted = (sigma_w**2 * run.jacobian).tolist()
        measured, error = average.mean[:, 0].tolist(), average.standard_error[:, 0].tolist()
        layers = list(range(1, depth + 1))
        start = 100 if depth > 100 else 10
        slopes = [_slope(layers[start:], values[start:]) for values in (measured, predicted)]
        rows.append(
            {
                "case": label, "slope_measured": round(slopes[0], 4), "slope_predicted": round(slopes[1], 4),
                "measured": rounded(measured), "standard_error": rounded(error), "predicted": rounded(predicted),
            }
        )  # fmt: skip
        print(f"{label}: slope {slopes[0]:.3f} measured, {slopes[1]:.3f} predicted")
        curves = [
            DepthCurve("measured", layers, measured, error),
            DepthCurve("predicted", layers, predicted, predicted=True),
        ]
        panels.append((label, curves))
    command = f"python -m studies.apjn_figure1 --initializations {initializations} --width {width}"
    store("apjn_figure1", command, out, [], cases=rows)
    curves_figure(panels, out / "figures" / "apjn_figure1.png")


def _slope(layers: list[int], values: list[float]) -> float:
    x = torch.log(torch.tensor(layers, dtype=torch.float64))
    y = torch.log(torch.tensor(values, dtype=torch.float64))
    return (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 5, "width": 200}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure1.json")


def judge(data: dict[str, Any]) -> Judgement:
    rows, apart = [], []
    for case in data["cases"]:
        rows.append(
            Row(f"{case['case']}: power of depth", f"{case['slope_predicted']:.2f}", f"{case['slope_measured']:.3f}")
        )
        apart.append(abs(case["slope_measured"] - case["slope_predicted"]))
    why = f"Measured powers lie within {max(apart):.2f} of the critical exponents of infinite width."
    return Judgement(verdict(max(apart) < 0.1, max(apart) < 0.4), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="apjn-figure1",
    paper="apjn",
    place="Fig. 1",
    claim="At criticality the partial Jacobian is a power of depth: -1 for erf, 0 for ReLU, near 1 for Pre-LN with "
    "mu = 1.",
    run=run,
    judge=judge,
    minutes=(1, 1),
    earlier="apjn_figure1.json",
)


if __name__ == "__main__":
    typer.run(main)
