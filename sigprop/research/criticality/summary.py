"""Everything the theory says about the criticality of one architecture, as plain data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from sigprop.errors import UnknownNameError
from sigprop.research.criticality.base import Architecture
from sigprop.research.criticality.batch_norm import BatchNormStack
from sigprop.research.criticality.layer_norm import ActivationNorm, PreactivationNorm
from sigprop.research.criticality.lines import critical_line
from sigprop.research.criticality.points import CriticalPoint, critical_points
from sigprop.research.criticality.vanilla import Vanilla
from sigprop.theory.activations import ActivationFunction, get
from sigprop.theory.activations.registry import Function

NORMS: dict[str, type[Architecture]] = {
    "none": Vanilla,
    "preactivation": PreactivationNorm,
    "activation": ActivationNorm,
    "batch": BatchNormStack,
}


def architecture(
    activation: str | ActivationFunction | Function,
    norm: str = "none",
    residual: float = 0.0,
    stages: int = 1,
    **parameters: Any,
) -> Architecture:
    """The repeated layer of that activation, norm (none, preactivation, activation, batch) and residual mu."""
    if norm not in NORMS:
        raise UnknownNameError("norm", norm, NORMS)
    known = get(activation, **parameters)
    return BatchNormStack(known, residual, stages) if norm == "batch" else NORMS[norm](known, residual)


@dataclass
class Criticality:
    """Critical line and points of an architecture; `line` is sampled, `notes` say what is special."""

    activation: str
    norm: str
    residual: float
    status: str
    everywhere: bool = False
    ray: float | None = None
    points: list[CriticalPoint] = field(default_factory=list)
    line: list[dict[str, float | bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def criticality(network: Architecture, points: int = 60) -> Criticality:
    """Line, points, stability, exponents and notes of an architecture."""
    activation = network.activation
    result = Criticality(activation.name, network.norm, network.residual, activation.status)
    if network.keep == 0:
        result.everywhere = not isinstance(network, Vanilla)
        result.notes.append(_at_full_residual(network))
        return result
    if isinstance(network, BatchNormStack):
        factor = network.jacobian(network.fixed_point(1.0, 0.0), 1.0, 0.0).item()
        result.notes.append(f"chi_J = {factor:.6f} at every sigma_w and sigma_b: critical only at mu = 1")
        return result
    if isinstance(network, Vanilla):
        result.points = critical_points(network)
        if not result.points:
            result.notes.append("no critical point: chi_J = chi_K = 1 has no solution with sigma_b^2 >= 0")
        threshold = _divergence(network)
        if threshold is not None:
            result.notes.append(f"the kernel grows without bound for sigma_w > {threshold:.6f}")
    if isinstance(network, PreactivationNorm):
        result.ray = network.ray()
    line = critical_line(network, points)
    if line is None:
        result.notes.append("no critical line: chi_J < 1 wherever the kernel settles, the network is ordered")
    else:
        columns = (line.sigma_w, line.sigma_b, line.kernel, line.kernel_slope, line.stable)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        keys = ("sigma_w", "sigma_b", "kernel", "kernel_slope", "stable")
        result.line = [dict(zip(keys, row, strict=True)) for row in rows if math.isfinite(row[1] * row[2])]
        if not result.line:
            result.notes.append("chi_J = 1 at that sigma_w and any sigma_b > 0 too, where the kernel grows linearly")
    return result


def _divergence(network: Vanilla) -> float | None:
    """The sigma_w beyond which K* is infinite, for activations of linear growth; None for the others."""
    far = torch.tensor([1e8, 1e10], dtype=torch.float64)
    near, rate = (network.square(far) / far).tolist()
    linear = math.isfinite(rate) and rate > 1e-6 and abs(rate / near - 1) < 1e-3
    return math.sqrt(network.keep / rate) if linear else None


def _at_full_residual(network: Architecture) -> str:
    if isinstance(network, Vanilla):
        return (
            "mu = 1 without a norm: chi_J >= 1, with equality at sigma_w = 0 only; the kernel grows without bound. "
            "Bounded activations grow as a stretched exponential, the others exponentially"
        )
    return "mu = 1 with a norm: chi_J -> 1 at every sigma_w and sigma_b; the Jacobian grows as a power of depth"
