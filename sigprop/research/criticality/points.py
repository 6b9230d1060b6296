"""Critical points and critical lines of settings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.interpolate import krogh_interpolate
from torch import Tensor

from sigprop.research.criticality.networks import (
    ActivationNorm,
    Architecture,
    BatchNormStack,
    PreactivationNorm,
    Vanilla,
    all_roots,
    derivative,
)

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
    return CriticalPoint(
        sigma_w, 0.0, 0.0, ATTRACTS, float(krogh_interpolate(roots.numpy(), ratio.numpy(), 0.0)) / order
    )


@dataclass(frozen=True)
class CriticalLine:
    """Points of the line in order; nan separates branches. `kernel_slope` (chi_K) < 1: K* is reached."""

    sigma_w: Tensor
    sigma_b: Tensor
    kernel: Tensor
    kernel_slope: Tensor

    @property
    def stable(self) -> Tensor:
        return self.kernel_slope < 1


def critical_line(network: Architecture, points: int = 400, reach: float = 10.0) -> CriticalLine | None:
    """The critical line, or None where there is none (or where every setting is critical, mu = 1).

    Without a norm, and with a norm after the activation, it is a curve with K* as parameter; with a norm
    before the activation it is a ray sigma_b = c sigma_w, drawn up to sigma_w = `reach`.
    """
    if network.keep == 0 or isinstance(network, BatchNormStack):
        return None
    if isinstance(network, PreactivationNorm):
        ray = network.ray()
        if ray is None:
            return None
        sigma_w = torch.linspace(0, reach, points, dtype=torch.float64)
        kernel = network.fixed_point(sigma_w, ray * sigma_w)
        return CriticalLine(sigma_w, ray * sigma_w, kernel, torch.full_like(kernel, network.residual**2))
    assert isinstance(network, (Vanilla, ActivationNorm))
    kernel = torch.logspace(-12, 6, points, dtype=torch.float64)
    weight, bias = network.critical_at(kernel)
    on_axis = bias.abs() <= 1e-12 * kernel
    bias = torch.where(on_axis, 0.0, bias)
    exists = bias >= 0
    if not exists.any():
        return None
    if on_axis.all() and (weight / weight[0] - 1).abs().max() < 1e-9:
        return _vertical(weight[0].sqrt(), points, reach)
    sigma_w = torch.where(exists, weight, torch.nan).sqrt()
    sigma_b = torch.where(exists, bias, torch.nan).sqrt()
    return CriticalLine(sigma_w, sigma_b, kernel, network.kernel_slope(kernel, sigma_w, sigma_b))


def _vertical(sigma_w: Tensor, points: int, reach: float) -> CriticalLine:
    """Scale-invariant activations: chi_J = 1 at one sigma_w and any sigma_b, where the kernel grows linearly."""
    sigma_b = torch.linspace(0, reach, points, dtype=torch.float64)
    kernel = torch.full_like(sigma_b, torch.inf)
    return CriticalLine(sigma_w.expand(points), sigma_b, kernel, torch.ones_like(sigma_b))
