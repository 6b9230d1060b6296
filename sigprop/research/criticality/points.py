"""Critical points of networks without a norm: chi_J = chi_K = 1, with their stability and exponent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.research.criticality.base import derivative
from sigprop.research.criticality.fixed_points import all_roots
from sigprop.research.criticality.vanilla import Vanilla

_ZERO = 1e-18  # the kernel that stands for K* = 0

ATTRACTS = "attracts"
REPELS = "repels"
FROM_ABOVE = "half-stable, attracts larger kernels"
FROM_BELOW = "half-stable, attracts smaller kernels"
NEUTRAL = "neutral: every kernel is a fixed point"


@dataclass(frozen=True)
class CriticalPoint:
    """chi_J = chi_K = 1. Where K* is reached, J ~ l^(-exponent); None where iteration leaves it."""

    sigma_w: float
    sigma_b: float
    kernel: float | None
    stability: str
    exponent: float | None


def critical_points(network: Vanilla) -> list[CriticalPoint]:
    """All critical points, by kernel.

    With sigma_w^2 and sigma_b^2 fixed by chi_J = 1 and K = K*, chi_K = 1 becomes d E phi^2 / dK = E phi'^2, an
    equation for K* alone that knows nothing of mu. K* = 0 is one if phi(0) = 0; scale-invariant activations
    satisfy it at every K. Points with sigma_b^2 < 0 do not exist.
    """
    if network.keep == 0:
        return []

    def mismatch(kernel: Tensor) -> Tensor:
        return derivative(network.square, kernel) / network.slope_square(kernel) - 1

    zero = torch.tensor(_ZERO, dtype=torch.float64)
    if mismatch(torch.logspace(-6, 6, 50, dtype=torch.float64)).abs().max() < 1e-10:
        weight, _ = network.critical_at(zero)
        return [CriticalPoint(weight.sqrt().item(), 0.0, None, NEUTRAL, 0.0)]
    points = []
    if network.square(zero) < 1e-15 and mismatch(zero).abs() < 1e-6:
        points.append(_at_zero(network, zero))
    for root in all_roots(mismatch):
        kernel = torch.tensor(root, dtype=torch.float64)
        weight, bias = network.critical_at(kernel)
        if bias > 0:
            points.append(_at_kernel(network, kernel, weight.sqrt().item(), bias.sqrt().item()))
    return points


def _at_kernel(network: Vanilla, kernel: Tensor, sigma_w: float, sigma_b: float) -> CriticalPoint:
    """Near K*, K' - K = a (K - K*)^2, so K - K* = -1 / (a l), and chi_J - 1 = c (K - K*): exponent c / a."""
    rate = derivative(lambda k: network.jacobian(k, sigma_w, sigma_b), kernel).item()
    step = 1e-4 * kernel.item()
    around = kernel + torch.tensor([-step, step], dtype=torch.float64)
    low, high = network.kernel_slope(around, sigma_w, sigma_b).tolist()
    curvature = (high - low) / (4 * step)
    stability = FROM_ABOVE if curvature < 0 else FROM_BELOW
    return CriticalPoint(sigma_w, sigma_b, kernel.item(), stability, rate / curvature)


def _at_zero(network: Vanilla, zero: Tensor) -> CriticalPoint:
    """Near K* = 0, K' - K ~ a K^(1 + q) and chi_J - 1 ~ c K^q: exponent c / (q a), q = 1 or, with a kink, 1/2.

    The ratio is taken at small kernels and extrapolated to zero as a polynomial in sqrt(K).
    """
    weight, _ = network.critical_at(zero)
    sigma_w = weight.sqrt().item()
    roots = 0.04 * 0.5 ** torch.arange(6, dtype=torch.float64)
    kernel = roots**2
    growth = network.step(kernel, sigma_w, 0.0) / kernel - 1
    ratio = (network.jacobian(kernel, sigma_w, 0.0) - 1) / growth
    if growth[-1] > 0:
        return CriticalPoint(sigma_w, 0.0, 0.0, REPELS, None)
    order = round(torch.log2(growth[-2] / growth[-1]).item()) / 2
    return CriticalPoint(sigma_w, 0.0, 0.0, ATTRACTS, _extrapolate(roots.tolist(), ratio.tolist()) / order)


def _extrapolate(x: list[float], y: list[float]) -> float:
    """The polynomial through (x, y) at x = 0 (Neville)."""
    y = list(y)
    for level in range(1, len(x)):
        for i in range(len(x) - level):
            y[i] = (x[i] * y[i + 1] - x[i + level] * y[i]) / (x[i] - x[i + level])
    return y[0]
