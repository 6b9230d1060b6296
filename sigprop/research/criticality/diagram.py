"""The predicted chi_J over a plane of two settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.research.criticality.growth import factor_at_depth
from sigprop.research.criticality.summary import architecture
from sigprop.research.phase.diagram import Axis, PhaseDiagram, check_plane
from sigprop.theory.activations import get
from sigprop.theory.activations.registry import Function


def predicted_diagram(
    activation: str | Function,
    x: Axis,
    y: Axis,
    fixed: dict[str, float] | None = None,
    norm: str = "none",
    stages: int = 1,
    depth: int | None = None,
    **parameters: Any,
) -> PhaseDiagram:
    """chi_J over two of sigma_w, sigma_b and residual; `fixed` sets the third.

    At the fixed point, or with `depth` in the penultimate block of a network of that many layers.
    """
    values: dict[str, Tensor] = {
        "sigma_w": torch.ones(1, 1),
        "sigma_b": torch.zeros(1, 1),
        "residual": torch.zeros(1, 1),
    }
    check_plane(x, y, fixed)
    for name, value in (fixed or {}).items():
        values[name] = torch.full((1, 1), value)
    values[x[0]] = torch.tensor([list(x[1])])
    values[y[0]] = torch.tensor([list(y[1])]).T
    known = get(activation, **parameters)
    mus = values.pop("residual").double()
    grid_w, grid_b = (values[name].double() for name in ("sigma_w", "sigma_b"))
    chi = torch.empty(len(y[1]), len(x[1]), dtype=torch.float64)
    for mu in mus.unique().tolist():
        network = architecture(known, norm, mu, stages)
        if depth is None:
            part = network.jacobian(network.fixed_point(grid_w, grid_b), grid_w, grid_b)
        else:
            part = factor_at_depth(network, grid_w, grid_b, depth)
        chi = torch.where(mus == mu, part, chi)
    settings = {"activation": known.name, "norm": norm, **(fixed or {}), "depth": depth, "source": "theory"}
    return PhaseDiagram(x[0], list(x[1]), y[0], list(y[1]), chi.tolist(), None, settings)
