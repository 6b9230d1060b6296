"""chi_J of MLPs of width 500 and depth 50, theory against measurement at 20 points per architecture.

`python -m sigprop.experiments.apjn_agreement --device cuda`. Writes docs/data/apjn_agreement.json and prints, for each
architecture, the largest standard error, and how many standard errors measurement and theory are apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import typer

from sigprop.experiments.apjn_shared import rounded
from sigprop.measure.grid import Network
from sigprop.measure.phase import measure_factors
from sigprop.theory.criticality import architecture, factor_at_depth

CASES: list[tuple[str, str, float, int]] = [
    ("relu", "none", 0.0, 1), ("erf", "none", 0.0, 1), ("gelu", "none", 0.0, 1), ("tanh", "none", 0.0, 1),
    ("erf", "preactivation", 0.0, 1), ("gelu", "preactivation", 0.0, 1), ("erf", "activation", 0.0, 1),
    ("relu", "activation", 0.0, 1), ("erf", "none", 0.7, 1), ("gelu", "none", 0.7, 1), ("erf", "none", 1.0, 1),
    ("gelu", "preactivation", 0.7, 1), ("erf", "preactivation", 1.0, 1), ("relu", "batch", 0.0, 1),
    ("relu", "batch", 0.7, 1), ("relu", "batch", 0.0, 2), ("relu", "batch", 0.7, 2),
]  # fmt: skip


def main(
    device: str = "cpu", initializations: int = 200, width: int = 500, depth: int = 50, out: Path = Path("docs")
) -> None:
    """Twenty (sigma_w, sigma_b) points per architecture; BatchNorm with batches of 512, four points."""
    rows = []
    for seed, (activation, norm, mu, stages) in enumerate(CASES):
        rows.append(_case(activation, norm, mu, stages, seed, device, initializations, width, depth))
        print(
            "{activation:5s} {norm:14s} mu {mu:3g} stages {stages}: standard error at most {worst_error:.2%}, "
            "z mean {z_mean:+.2f}, largest {z_worst:.2f}, within 3: {within}".format(**rows[-1]),
            flush=True,
        )
    path = out / "data" / "apjn_agreement.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"python -m sigprop.experiments.apjn_agreement --initializations {initializations}"
    path.write_text(json.dumps({"command": command, "rows": rows}) + "\n")


def _case(
    activation: str, norm: str, mu: float, stages: int, seed: int, device: str, count: int, width: int, depth: int
) -> dict[str, Any]:
    batch = norm == "batch"
    generator = torch.Generator().manual_seed(seed)
    points = 4 if batch else 20
    sigma_w = 0.6 + 1.9 * torch.rand(points, generator=generator)
    sigma_b = 0.8 * torch.rand(points, generator=generator)
    layers = 12 if batch else depth
    network = Network(activation, norm, layers, width, batch=512 if batch else 1, stages=stages)
    average = measure_factors(
        network,
        sigma_w,
        sigma_b,
        mu,
        initializations=count // 20 if batch else count,
        probes=4,
        seed=seed,
        device=device,
    )
    theory = factor_at_depth(architecture(activation, norm, mu, stages), sigma_w.double(), sigma_b.double(), layers)
    z = (average.mean - theory) / average.standard_error
    return {
        "activation": activation, "norm": norm, "mu": mu, "stages": stages, "depth": layers,
        "worst_error": (average.standard_error / average.mean).max().item(), "z_mean": z.mean().item(),
        "z_worst": z.abs().max().item(), "within": f"{int((z.abs() < 3).sum())}/{points}",
        "ratio_worst": (average.mean / theory - 1).abs().max().item(),
        "sigma_w": rounded(sigma_w.tolist()), "sigma_b": rounded(sigma_b.tolist()),
        "measured": rounded(average.mean.tolist()), "theory": rounded(theory.tolist()), "z": rounded(z.tolist()),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
