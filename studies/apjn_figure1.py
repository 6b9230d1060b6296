"""apjn Fig. 1: the partial Jacobian J^{0,l} over depth, at criticality.

`python -m studies.apjn_figure1 --device cuda`. Power laws: erf l^-1, ReLU constant, pre-LN with mu = 1
l^(A/B). Width 1000, 100 initializations (paper's setting).
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import typer

from sigprop.measure.grid import Network
from sigprop.measure.phase import mlp_jacobians
from sigprop.report.phase import Curve, curves_figure
from sigprop.theory.criticality import architecture, trajectory
from studies.apjn_shared import progress, rounded, store

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
        curves = [Curve("measured", layers, measured, error), Curve("predicted", layers, predicted, predicted=True)]
        panels.append((label, curves))
    command = f"python -m studies.apjn_figure1 --initializations {initializations} --width {width}"
    store("apjn_figure1", command, out, [], cases=rows)
    curves_figure(panels, out / "figures" / "apjn_figure1.png")


def _slope(layers: list[int], values: list[float]) -> float:
    x = torch.log(torch.tensor(layers, dtype=torch.float64))
    y = torch.log(torch.tensor(values, dtype=torch.float64))
    return (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()


if __name__ == "__main__":
    typer.run(main)
