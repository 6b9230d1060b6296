"""apjn Fig. 10: with LayerNorm the critical exponent vanishes, J^{0,l} stays constant on the critical line.

`python -m studies.apjn_figure10 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import typer

from sigprop.research.criticality import ActivationNorm, PreactivationNorm, architecture, trajectory
from sigprop.research.phase.diagrams import mlp_jacobians
from sigprop.research.phase.figure import DepthCurve, curves_figure
from sigprop.research.phase.networks import Network
from studies.apjn_shared import progress, rounded, store
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict


def main(
    device: str = "cpu", initializations: int = 100, width: int = 1000, depth: int = 250, out: Path = Path("docs")
) -> None:
    """LayerNorm on pre-activations (LN-erf) and on activations (erf-LN)."""
    before, after = architecture("erf", "preactivation"), architecture("erf", "activation")
    assert isinstance(before, PreactivationNorm)
    assert isinstance(after, ActivationNorm)
    weight, bias = after.critical_at(torch.tensor(1.0, dtype=torch.float64))
    cases = {
        "LN-erf": (before, 1.0, before.ray() or 0.0),
        "erf-LN": (after, weight.sqrt().item(), bias.sqrt().item()),
    }
    panels, rows, layers = [], [], list(range(1, depth + 1))
    for label, (network, sigma_w, sigma_b) in cases.items():
        average = mlp_jacobians(
            Network("erf", network.norm, depth, width), torch.tensor([sigma_w]), torch.tensor([sigma_b]),
            initializations=initializations, device=device, progress=progress(label),
        )  # fmt: skip
        measured, error = average.mean[:, 0].tolist(), average.standard_error[:, 0].tolist()
        predicted = (sigma_w**2 * trajectory(network, sigma_w, sigma_b, depth).jacobian).tolist()
        curves = [
            DepthCurve("measured", layers, measured, error),
            DepthCurve("predicted", layers, predicted, predicted=True),
        ]
        panels.append((f"{label}, ({sigma_w:.3f}, {sigma_b:.3f})", curves))
        columns = {"measured": measured, "standard_error": error, "predicted": predicted}
        rows.append({"case": label, **{key: rounded(values) for key, values in columns.items()}})
    command = f"python -m studies.apjn_figure10 --initializations {initializations} --width {width}"
    store("apjn_figure10", command, out, [], cases=rows)
    curves_figure(panels, out / "figures" / "apjn_figure10.png")


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 5, "width": 200}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure10.json")


def judge(data: dict[str, Any]) -> Judgement:
    rows, changes = [], []
    for case in data["cases"]:
        measured, error = case["measured"], case["standard_error"]
        changes.append(measured[-1] / case["predicted"][-1])
        told = f"{measured[-1]:.2f} ± {error[-1]:.2f} against {case['predicted'][-1]:.2f}"
        rows.append(Row(f"{case['case']}: J at layer {len(measured)} against theory", "constant", told))
    why = (
        f"No power of depth: J ends at {min(changes):.2f} to {max(changes):.2f} times its constant. The rest are "
        "corrections of order depth over width, a quarter here, which the paper does not follow."
    )
    apart = max(abs(change - 1) for change in changes)
    return Judgement(verdict(apart < 0.1, apart < 0.5), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="apjn-figure10",
    paper="apjn",
    place="Fig. 10",
    claim="On the critical line of LayerNorm networks the Jacobian stays constant over depth.",
    run=run,
    judge=judge,
    minutes=(1, 1),
    earlier="apjn_figure10.json",
)


if __name__ == "__main__":
    typer.run(main)
