"""apjn Fig. 9: the stretched exponential, log J against sqrt(l), at mu = 1 without norm.

`python -m studies.apjn_figure9 --device cuda`. Slope 2 c; the paper has erf, here tanh too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import typer

from sigprop.research.criticality import Vanilla, architecture, stretched_rate, trajectory
from sigprop.research.phase.diagrams import mlp_jacobians
from sigprop.research.phase.figure import DepthCurve, curves_figure
from sigprop.research.phase.networks import Network
from studies.apjn_shared import progress, rounded, store
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict


def main(
    device: str = "cpu", initializations: int = 100, width: int = 1000, depth: int = 250, out: Path = Path("docs")
) -> None:
    """sigma_w = 1.164 (c = 0.741 for erf), sigma_b = 0."""
    sigma_w, panels, rows = 1.164, [], []
    for activation in ("erf", "tanh"):
        network = architecture(activation, residual=1.0)
        assert isinstance(network, Vanilla)
        average = mlp_jacobians(
            Network(activation, "none", depth, width), torch.tensor([sigma_w]), torch.tensor([0.0]), 1.0,
            initializations=initializations, device=device, progress=progress(activation),
        )  # fmt: skip
        measured = torch.log(average.mean[:, 0])
        error = (average.standard_error[:, 0] / average.mean[:, 0]).tolist()
        predicted = torch.log(sigma_w**2 * trajectory(network, sigma_w, 0.0, depth).jacobian)
        rate = stretched_rate(network, sigma_w, 0.0)
        assert rate is not None
        roots = [math.sqrt(layer) for layer in range(1, depth + 1)]
        curves = [
            DepthCurve("measured", roots, measured.tolist(), error),
            DepthCurve(f"recursion; slope -> {2 * rate:.3f}", roots, predicted.tolist(), predicted=True),
        ]
        panels.append((activation, curves))
        columns = {"measured": measured.tolist(), "standard_error": error, "predicted": predicted.tolist()}
        rows.append({"activation": activation, "rate": rate, **{k: rounded(v) for k, v in columns.items()}})
    command = f"python -m studies.apjn_figure9 --initializations {initializations} --width {width}"
    store("apjn_figure9", command, out, [], cases=rows)
    labels = (r"$\sqrt{l}$", r"$\log J^{0,l}$")
    curves_figure(panels, out / "figures" / "apjn_figure9.png", ("linear", "linear"), labels)


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 5, "width": 200}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure9.json")


def judge(data: dict[str, Any]) -> Judgement:
    rows, apart = [], []
    for case in data["cases"]:
        slope, limit = _slope(case["measured"]), 2 * case["rate"]
        rows.append(Row(f"{case['activation']}: slope of log J over the root of depth", f"{limit:.3f}", f"{slope:.3f}"))
        apart.append(abs(slope / limit - 1))
    why = f"log J is a line in the root of depth beyond layer 100; its slope is within {max(apart):.1%} of the limit."
    return Judgement(verdict(max(apart) < 0.1, max(apart) < 0.5), why, tuple(rows))


def _slope(values: list[float]) -> float:
    x = torch.arange(101, len(values) + 1, dtype=torch.float64).sqrt()
    y = torch.tensor(values[100:], dtype=torch.float64)
    return (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()


REPRODUCTION = Reproduction(
    id="apjn-figure9",
    paper="apjn",
    place="Fig. 9 and Theorem 4.3",
    claim="Without norm and with mu = 1, Jacobians of erf networks grow like exp(2 c sqrt(l)).",
    run=run,
    judge=judge,
    minutes=(1, 1),
    earlier="apjn_figure9.json",
)


if __name__ == "__main__":
    typer.run(main)
