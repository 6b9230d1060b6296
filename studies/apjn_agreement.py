"""chi_J of MLPs of width 500, theory against measurement at 20 points per architecture.

`python -m studies.apjn_agreement --device cuda`. Writes docs/data/apjn_agreement.json and prints, for each
architecture, the largest standard error, and how many standard errors measurement and theory are apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor

from sigprop.research.criticality import (
    BatchNormStack,
    Vanilla,
    architecture,
    batch_norm_factor,
    factor_at_depth,
    factor_at_width,
)
from sigprop.research.phase.diagrams import measure_factors
from sigprop.research.phase.networks import Network
from studies.reproduction import rounded
from studies.stored import stamp, write

CASES: list[tuple[str, str, float]] = [
    ("relu", "none", 0.0), ("erf", "none", 0.0), ("gelu", "none", 0.0), ("tanh", "none", 0.0),
    ("erf", "preactivation", 0.0), ("gelu", "preactivation", 0.0), ("erf", "activation", 0.0),
    ("relu", "activation", 0.0), ("erf", "none", 0.7), ("gelu", "none", 0.7), ("erf", "none", 1.0),
    ("gelu", "preactivation", 0.7), ("erf", "preactivation", 1.0),
]  # fmt: skip
ACTIVATIONS, STRENGTHS = ("relu", "erf", "gelu", "tanh", "silu"), (0.0, 0.3, 0.6, 0.9)


def main(
    device: str = "cpu", initializations: int = 100, width: int = 500, depth: int = 50, out: Path = Path("docs")
) -> None:
    """Twenty (sigma_w, sigma_b) points per architecture, in four groups with random matrices of their own.

    BatchNorm has one factor for all sigma_w and sigma_b: twenty (activation, mu) pairs instead, for blocks of one stage
    and of two, depth 6, batches of 512.
    """
    rows = []
    for index, (activation, norm, mu) in enumerate(CASES):
        network = Network(activation, norm, depth, width)
        groups = [_group(network, mu, 100 * index + group, device, initializations) for group in range(4)]
        rows.append(_row({"activation": activation, "norm": norm, "mu": mu, "depth": depth}, groups))
    for stages in (1, 2):
        groups = []
        for index, activation in enumerate(ACTIVATIONS):
            network = Network(activation, "batch", 6, width, batch=512, stages=stages)
            groups.append(_batch_norm_group(network, 5000 + 10 * index + stages, device, initializations))
        case = {"activation": " ".join(ACTIVATIONS), "norm": "batch", "mu": STRENGTHS, "stages": stages, "depth": 6}
        rows.append(_row(case, groups))
    head = stamp(f"apjn_agreement --initializations {initializations}")
    write(out / "data" / "apjn_agreement.json", head | {"rows": rows})


def _group(network: Network, mu: float, seed: int, device: str, count: int) -> dict[str, Tensor]:
    """Five random points that share their matrices."""
    generator = torch.Generator().manual_seed(seed)
    sigma_w = 0.6 + 1.9 * torch.rand(5, generator=generator)
    sigma_b = 0.8 * torch.rand(5, generator=generator)
    average = measure_factors(network, sigma_w, sigma_b, mu, initializations=count, probes=4, seed=seed, device=device)
    known, point = architecture(network.activation, network.norm, mu), (sigma_w.double(), sigma_b.double())
    if isinstance(known, Vanilla) and mu == 0:
        theory = factor_at_width(known, *point, network.depth, network.width, network.inputs)
    else:
        theory = factor_at_depth(known, *point, network.depth)
    return {
        "sigma_w": sigma_w, "sigma_b": sigma_b, "measured": average.mean, "standard_error": average.standard_error,
        "theory": theory,
    }  # fmt: skip


def _batch_norm_group(network: Network, seed: int, device: str, count: int) -> dict[str, Tensor]:
    """All residual strengths of one activation, with and without the corrections of finite width and batch."""
    one, strengths = torch.ones(1), torch.tensor(STRENGTHS)
    average = measure_factors(
        network, one, 0 * one, strengths, initializations=count, probes=4, seed=seed, device=device
    )
    finite, large = [], []
    for mu in STRENGTHS:
        known = architecture(network.activation, "batch", mu, network.stages)
        assert isinstance(known, BatchNormStack)
        finite.append(batch_norm_factor(known, network.depth, network.width, network.batch, network.inputs))
        large.append(factor_at_depth(known, 1.0, 0.0, network.depth))
    return {
        "measured": average.mean, "standard_error": average.standard_error, "theory": torch.stack(finite),
        "infinite": torch.stack(large),
    }  # fmt: skip


def _row(case: dict[str, Any], groups: list[dict[str, Tensor]]) -> dict[str, Any]:
    columns = {key: torch.cat([group[key] for group in groups]).double() for key in groups[0]}
    measured, error, theory = (columns[key] for key in ("measured", "standard_error", "theory"))
    z = (measured - theory) / error
    row = {
        **case, "worst_error": (error / measured).max().item(), "z_mean": z.mean().item(),
        "z_worst": z.abs().max().item(), "within": f"{int((z.abs() < 3).sum())}/{len(z)}",
        "ratio_worst": (measured / theory - 1).abs().max().item(), "z": rounded(z.tolist()),
        **{key: rounded(values.tolist()) for key, values in columns.items()},
    }  # fmt: skip
    print(
        "{activation:5s} {norm:14s} mu {mu}: standard error at most {worst_error:.2%}, "
        "z mean {z_mean:+.2f}, largest {z_worst:.2f}, within 3: {within}".format(**row),
        flush=True,
    )
    return row


if __name__ == "__main__":
    typer.run(main)
