"""Everything the theory says about the criticality of one architecture, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sigprop.errors import UnknownNameError, require
from sigprop.research.criticality.networks import (
    ActivationNorm,
    Architecture,
    BatchNormStack,
    Number,
    PreactivationNorm,
    Vanilla,
    derivative,
)
from sigprop.research.criticality.points import ATTRACTS, NEUTRAL, CriticalPoint, critical_line, critical_points
from sigprop.research.phase.diagram import Axis, PhaseDiagram, plane_values
from sigprop.theory.activations import ActivationFunction, get
from sigprop.theory.activations.gaussian import as_double
from sigprop.theory.activations.quadrature import Function


@dataclass(frozen=True)
class Trajectory:
    """Kernel K^l and factor chi_J^l at layers l = 1 .. depth (first axis), and the Jacobian J^{1,l}."""

    kernel: Tensor
    jacobian_factor: Tensor

    @property
    def jacobian(self) -> Tensor:
        """J^{1,l} = product of chi_J^1 .. chi_J^{l-1}."""
        ones = torch.ones_like(self.jacobian_factor[:1])
        return torch.cat([ones, torch.cumprod(self.jacobian_factor[:-1], 0)])


def trajectory(network: Architecture, sigma_w: Number, sigma_b: Number, depth: int) -> Trajectory:
    """Iterate from unit inputs, K^1 = sigma_w^2 + sigma_b^2."""
    require(depth >= 1, "depth", depth, "at least one layer")
    sigma_w, sigma_b = torch.broadcast_tensors(*as_double(sigma_w, sigma_b))
    kernels = list(_kernels(network, sigma_w, sigma_b, depth))
    factors = [network.jacobian(kernel, sigma_w, sigma_b) for kernel in kernels]
    return Trajectory(torch.stack(kernels), torch.stack(factors))


def _kernels(network: Architecture, sigma_w: Any, sigma_b: Any, depth: int) -> Iterator[Tensor]:
    """K^1 .. K^depth."""
    kernel = sigma_w**2 + network.bias(sigma_b)
    for layer in range(depth):
        kernel = network.step(kernel, sigma_w, sigma_b) if layer else kernel
        yield kernel


def factor_at_depth(network: Architecture, sigma_w: Number, sigma_b: Number, depth: int) -> Tensor:
    """chi_J of the penultimate block of a network with `depth` layers: at h^{depth - 2}."""
    require(depth >= 3, "depth", depth, "at least three layers, to have a penultimate block")
    sigma_w, sigma_b = torch.broadcast_tensors(*as_double(sigma_w, sigma_b))
    *_, kernel = _kernels(network, sigma_w, sigma_b, depth - 2)
    return network.jacobian(kernel, sigma_w, sigma_b)


def growth_exponent(network: Architecture, sigma_w: float, sigma_b: float) -> float:
    """With mu = 1 and a norm before the activation, J ~ l^g.

    The kernel grows by B per layer, so chi_J - 1 = A / (B l) and g = A / B, with A = sigma_w^2 E phi'^2 and
    B = sigma_w^2 E phi^2 + sigma_b^2 at unit variance; with BatchNorm (E phi'^2 / Var phi)^m.
    """
    require(network.keep == 0, "residual", network.residual, "mu = 1; below it the kernel settles")
    if isinstance(network, BatchNormStack):
        return network.stage_factor() ** network.stages
    require(isinstance(network, PreactivationNorm), "norm", network.norm, "'preactivation' or 'batch'")
    growth = network.step(0.0, sigma_w, sigma_b)
    return (network.jacobian(1.0, sigma_w, sigma_b).item() - 1) / growth.item()


def stretched_rate(network: Vanilla, sigma_w: float, sigma_b: float) -> float | None:
    """c in log J ~ 2 c sqrt(l): networks without norm, mu = 1, bounded activation. None if phi is not bounded.

    K grows by P = sigma_w^2 phi(inf)^2 + sigma_b^2 per layer and E phi'^2 -> d / sqrt(K), d = int phi'^2 dx /
    sqrt(2 pi); so chi_J = 1 + c / sqrt(l), c = sigma_w^2 d / sqrt(P). For erf c = 2 sigma_w^2 / (pi sqrt(sigma_w^2 +
    sigma_b^2)) (Doshi, He, Gromov 2023, theorem 4.3, where it is known for erf only).
    """
    require(network.keep == 0, "residual", network.residual, "mu = 1; below it the kernel settles")
    far = torch.tensor([1e8, 1e10], dtype=torch.float64)
    near, late = network.square(far).tolist()
    if late > 1.01 * near:
        return None
    plateau = (10 * late - near) / 9  # approached like 1 / sqrt(K)
    slopes = (network.slope_square(far) * far.sqrt()).tolist()
    return sigma_w**2 * slopes[1] / math.sqrt(sigma_w**2 * plateau + sigma_b**2)


def jacobian_from_input(
    activation: ActivationFunction, sigma_w: Number, sigma_b: Number, inputs: int
) -> tuple[Tensor, Tensor]:
    """J^{0,2} of a network without norm, at finite input width N0, and its infinite-width value.

    J^{0,2} = sigma_w^2 [chi_J^1 + (2 sigma_w^2 / N0) chi_D q], chi_D = sigma_w^2 E[phi''^2 + phi''' phi'] =
    sigma_w^2 d E phi'^2 / dK at K^1 = sigma_w^2 q + sigma_b^2, q = mean square of the inputs: the first weights enter
    both the kernel and the Jacobian (Doshi, He, Gromov 2023, lemma D.1). Zero for scale-invariant phi.
    """
    require(inputs >= 1, "inputs", inputs, "at least one input")
    sigma_w, sigma_b = as_double(sigma_w, sigma_b)
    kernel = sigma_w**2 + sigma_b**2
    plain = sigma_w**2 * activation.derivative_second_moment(kernel)
    bend = sigma_w**2 * derivative(activation.derivative_second_moment, kernel)
    corrected = plain + 2 * sigma_w**2 / inputs * bend
    return sigma_w**2 * corrected, sigma_w**2 * plain


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


def predicted_diagram(
    activation: str | Function,
    x: Axis,
    y: Axis,
    fixed: dict[str, float] | None = None,
    norm: str = "none",
    **parameters: Any,
) -> PhaseDiagram:
    """chi_J at the fixed point over two of sigma_w, sigma_b and residual; `fixed` sets the third."""
    values = plane_values(x, y, fixed, {"sigma_w": 1.0, "sigma_b": 0.0, "residual": 0.0})
    known = get(activation, **parameters)
    mus = values.pop("residual").double()
    grid_w, grid_b = (values[name].double() for name in ("sigma_w", "sigma_b"))
    chi = torch.empty(len(y[1]), len(x[1]), dtype=torch.float64)
    for mu in mus.unique().tolist():
        network = architecture(known, norm, mu)
        part = network.jacobian(network.fixed_point(grid_w, grid_b), grid_w, grid_b)
        chi = torch.where(mus == mu, part, chi)
    settings = {"activation": known.name, "norm": norm, **(fixed or {}), "source": "theory"}
    return PhaseDiagram.over(x, y, chi.tolist(), None, settings)


# -- which weights and biases keep gradients at any depth, from an input of unit mean square; none where none do

SHALLOW, DEEP = 100, 400
STEEPEST = 3.0
"""Exponent of depth up to which the squared gradient counts as kept: elu falls like depth^-2, silu explodes beyond any
power. Between `SHALLOW` and `DEEP` layers a factor of 1.05 per layer is depth^10 already."""


@dataclass(frozen=True)
class CriticalInit:
    """Standard deviations over sqrt(fan_in) of the weights and of the biases; squared gradient ~ depth^exponent."""

    sigma_w: float
    sigma_b: float
    exponent: float


def prescription(network: Architecture, result: Criticality) -> CriticalInit | None:
    """The first candidate that the recursion confirms; on the critical line the one that changes gradients least."""
    kept = [found for found in (_followed(network, *pair) for pair in _points(result)) if found is not None]
    if kept:
        return kept[0]
    line = [(row["sigma_w"], row["sigma_b"]) for row in result.line if row["stable"]]
    kept = [found for found in (_followed(network, *pair) for pair in line) if found is not None]
    return min(kept, key=lambda found: abs(found.exponent), default=None)


def _points(result: Criticality) -> Iterator[tuple[float, float]]:
    """Points that attract from both sides first, then those that attract from one, then a norm's critical ray."""
    steady = [point for point in result.points if point.stability in (ATTRACTS, NEUTRAL)]
    halfway = [point for point in result.points if point.stability.startswith("half-stable")]
    yield from ((point.sigma_w, point.sigma_b) for point in (*steady, *halfway))
    if result.ray is not None:
        yield 1.0, result.ray


def _followed(network: Architecture, sigma_w: float, sigma_b: float) -> CriticalInit | None:
    """Kernel and gradient iterated from unit input; None where the gradient changes faster than a power of depth."""
    path = trajectory(network, sigma_w, sigma_b, DEEP)
    first, last = (float(path.jacobian[depth - 1]) for depth in (SHALLOW, DEEP))
    if not (math.isfinite(float(path.kernel[-1])) and 0 < first < math.inf and 0 < last < math.inf):
        return None
    exponent = math.log(last / first) / math.log(DEEP / SHALLOW)
    return CriticalInit(sigma_w, sigma_b, exponent) if abs(exponent) <= STEEPEST else None


def advice(network: Architecture, result: Criticality) -> str:
    """The sentence that answers the question: how to initialize weights and biases, or what to do instead."""
    if result.everywhere:
        return "Critical everywhere: gradients change as a power of depth at most, at every std."
    found = prescription(network, result)
    if found is not None:
        return f"Initialize {_stds(found)}: the squared gradient changes like depth^{_power(found)}, from unit input."
    return (
        "No initialization keeps gradients at any depth: at every std they grow or vanish exponentially from unit "
        f"input. {_instead(network)}"
    )


def _instead(network: Architecture) -> str:
    """A norm before the activation, where that was confirmed."""
    normed = architecture(network.activation, "preactivation", network.residual)
    found = prescription(normed, criticality(normed)) if network.norm == "none" and network.keep else None
    if found is None:
        return "Use residual connections whose branches start with a norm."
    return (
        f"With a norm before the activation, initialize {_stds(found)} (--norm preactivation); or use residual "
        "connections whose branches start with a norm."
    )


def _stds(found: CriticalInit) -> str:
    biases = f"biases with std {found.sigma_b:.3g}" if found.sigma_b > 0 else "biases with 0"
    return f"weights with std {found.sigma_w:.3g}/sqrt(fan_in) and {biases}"


def _power(found: CriticalInit) -> str:
    return f"{found.exponent:.1f}".replace("-0.0", "0.0")
