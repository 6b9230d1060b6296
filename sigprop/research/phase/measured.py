"""Measured phase diagrams of MLPs: chi_J of the penultimate block over a grid of settings.

For a deep network of repeated blocks, J^{L-2,L-1} = (1/N) sum_ij (d h_i^{L-1} / d h_j^{L-2})^2 estimates the
limiting chi_J (Doshi, He, Gromov 2023, proposition 2.6). The states run forward without a graph; only the
penultimate block is differentiated, with random sign vectors v: E |J^T v|^2 = |J|^2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.measurement.statistics import Average, average_over
from sigprop.research.phase.diagram import Axis, PhaseDiagram, check_plane
from sigprop.research.phase.grid import PRECISIONS, Layers, Network, Points

Progress = Callable[[int, int], None]


_FAINT = 1e-20


def block_factors(network: Network, points: Points, seed: int, probes: int = 1) -> Tensor:
    """chi_J of the penultimate block at every point [P], for one initialization and one random input.

    States that fade below 1e-20 are lifted back to it before they underflow: so close to zero every activation is
    homogeneous, and its slopes do not depend on the scale.
    """
    layers = Layers(network, points, seed)
    with torch.no_grad():
        h = layers.linear(network.inputs)(layers.normal(network.batch, network.inputs))
        for layer in range(network.depth - 3):
            h = layers.block(PRECISIONS[network.precision])(h)
            if layer % 8 == 7:
                peak = h.abs().amax((1, 2), keepdim=True)
                h = h * torch.where((peak > 0) & (peak < _FAINT), _FAINT / peak, 1.0)
    pull = torch.func.vjp(layers.block(), h)[1]
    total = torch.zeros(len(h), device=h.device)
    for _ in range(probes):
        (back,) = pull(layers.signs(1, network.batch, network.width).expand_as(h))
        total += back.square().sum((1, 2))
    return total / (probes * network.batch * network.width)


def measure_factors(
    network: Network,
    sigma_w: Tensor,
    sigma_b: Tensor,
    residual: Tensor | float = 0.0,
    *,
    initializations: int = 100,
    probes: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Average:
    """chi_J averaged over initializations, at points given by broadcasting sigma_w, sigma_b and residual."""
    require(initializations >= 1, "initializations", initializations, "at least 1")
    require(probes >= 1, "probes", probes, "at least 1")
    residual = torch.as_tensor(residual)
    points = Points.of(sigma_w, sigma_b, residual, device)
    shape = tuple(torch.broadcast_shapes(sigma_w.shape, sigma_b.shape, residual.shape))
    settings = {
        **network.settings(),
        "probes": probes,
        "seed": seed,
        **{name: value.tolist() for name, value in (("w", sigma_w), ("b", sigma_b), ("mu", residual))},
    }

    def sample(index: int) -> Tensor:
        return block_factors(network, points, _seed(seed, index), probes).reshape(shape)

    return average_over(sample, initializations, shape, settings, resume, progress)


def mlp_phase(
    network: Network,
    x: Axis,
    y: Axis,
    fixed: dict[str, float] | None = None,
    *,
    initializations: int = 100,
    probes: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> PhaseDiagram:
    """Phase diagram over two of sigma_w, sigma_b and residual, e.g. x=("sigma_w", values); `fixed` sets the third."""
    values = {"sigma_w": torch.tensor(1.0), "sigma_b": torch.tensor(0.0), "residual": torch.tensor(0.0)}
    check_plane(x, y, fixed)
    values.update({name: torch.tensor(float(value)) for name, value in (fixed or {}).items()})
    values[x[0]] = torch.tensor(list(x[1]), dtype=torch.float32)[None, :]
    values[y[0]] = torch.tensor(list(y[1]), dtype=torch.float32)[:, None]
    average = measure_factors(
        network, **values, initializations=initializations, probes=probes, seed=seed, device=device,
        resume=resume, progress=progress,
    )  # fmt: skip
    settings = {
        **network.settings(), **(fixed or {}), "initializations": initializations, "probes": probes, "seed": seed,
        "source": "measure",
    }  # fmt: skip
    return PhaseDiagram(
        x[0], list(x[1]), y[0], list(y[1]), average.mean.tolist(), average.standard_error.tolist(), settings
    )


def mlp_jacobians(
    network: Network,
    sigma_w: Tensor,
    sigma_b: Tensor,
    residual: Tensor | float = 0.0,
    *,
    initializations: int = 100,
    probes: int = 4,
    seed: int = 0,
    device: str | torch.device = "cpu",
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Average:
    """J^{0,l} at layers l = 1 .. depth and every point [depth, P]: the inputs' random tangents, carried forward."""
    require(network.norm != "batch", "norm", network.norm, "a norm that acts on one sample at a time")
    points = Points.of(sigma_w, sigma_b, torch.as_tensor(residual), device)
    count = len(points.sigma_w)

    def sample(index: int) -> Tensor:
        layers = Layers(network, points, _seed(seed, index))
        x = layers.normal(1, network.inputs).repeat(probes, 1)
        first = layers.linear(network.inputs)
        rows = []
        with torch.no_grad():
            h, tangent = first(x), first.product(layers.signs(probes, network.inputs))
            for layer in range(network.depth):
                if layer:
                    h, tangent = layers.carry(h, tangent)
                rows.append(tangent.double().square().sum(2).mean(1) / network.width)
        return torch.stack(rows)

    settings = {**network.settings(), "seed": seed, "probes": probes, "kind": "profile"}
    settings["points"] = [t.flatten().tolist() for t in (points.sigma_w, points.sigma_b, points.residual)]
    return average_over(sample, initializations, (network.depth, count), settings, resume, progress)


def _seed(seed: int, index: int) -> int:
    return seed * 1_000_003 + index
