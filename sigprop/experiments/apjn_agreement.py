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
from torch import Tensor

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
    device: str = "cpu", initializations: int = 50, width: int = 500, depth: int = 50, out: Path = Path("docs")
) -> None:
    """Twenty (sigma_w, sigma_b) points per architecture, in four groups with random matrices of their own.

    BatchNorm has one factor for all settings: one point, depth 6, batches of 512.
    """
    rows = []
    for index, (activation, norm, mu, stages) in enumerate(CASES):
        batch = norm == "batch"
        network = Network(activation, norm, 6 if batch else depth, width, batch=512 if batch else 1, stages=stages)
        seeds = [100 * index] if batch else [100 * index + group for group in range(4)]
        groups = [_group(network, mu, seed, 1 if batch else 5, device, initializations) for seed in seeds]
        rows.append(_row(network, mu, groups))
        print(
            "{activation:5s} {norm:14s} mu {mu:3g} stages {stages}: standard error at most {worst_error:.2%}, "
            "z mean {z_mean:+.2f}, largest {z_worst:.2f}, within 3: {within}".format(**rows[-1]),
            flush=True,
        )
    path = out / "data" / "apjn_agreement.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"python -m sigprop.experiments.apjn_agreement --initializations {initializations}"
    path.write_text(json.dumps({"command": command, "rows": rows}) + "\n")


def _group(network: Network, mu: float, seed: int, points: int, device: str, count: int) -> Tensor:
    """Rows sigma_w, sigma_b, measured, standard error, theory at random points that share their matrices."""
    generator = torch.Generator().manual_seed(seed)
    sigma_w = 0.6 + 1.9 * torch.rand(points, generator=generator)
    sigma_b = 0.8 * torch.rand(points, generator=generator)
    average = measure_factors(network, sigma_w, sigma_b, mu, initializations=count, probes=4, seed=seed, device=device)
    known = architecture(network.activation, network.norm, mu, network.stages)
    theory = factor_at_depth(known, sigma_w.double(), sigma_b.double(), network.depth)
    return torch.stack([sigma_w.double(), sigma_b.double(), average.mean, average.standard_error, theory])


def _row(network: Network, mu: float, groups: list[Tensor]) -> dict[str, Any]:
    sigma_w, sigma_b, measured, error, theory = torch.cat(groups, dim=1)
    z = (measured - theory) / error
    return {
        "activation": network.activation, "norm": network.norm, "mu": mu, "stages": network.stages,
        "depth": network.depth, "worst_error": (error / measured).max().item(), "z_mean": z.mean().item(),
        "z_worst": z.abs().max().item(), "within": f"{int((z.abs() < 3).sum())}/{len(z)}",
        "ratio_worst": (measured / theory - 1).abs().max().item(),
        "sigma_w": rounded(sigma_w.tolist()), "sigma_b": rounded(sigma_b.tolist()),
        "measured": rounded(measured.tolist()), "theory": rounded(theory.tolist()), "z": rounded(z.tolist()),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
