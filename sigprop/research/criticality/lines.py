"""Critical lines chi_J = 1 in the (sigma_w, sigma_b) plane."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.research.criticality.base import Architecture
from sigprop.research.criticality.batch_norm import BatchNormStack
from sigprop.research.criticality.layer_norm import ActivationNorm, PreactivationNorm
from sigprop.research.criticality.vanilla import Vanilla


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


def critical_sigma_b(network: Architecture, sigma_w: Tensor) -> Tensor:
    """sigma_b on the critical line at given sigma_w, by interpolation along it; nan where it has none."""
    line = critical_line(network, points=4000, reach=float(sigma_w.max()) + 1)
    if line is None:
        return torch.full_like(sigma_w, torch.nan)
    alive = torch.isfinite(line.sigma_b)
    x, y = line.sigma_w[alive], line.sigma_b[alive]
    order = torch.argsort(x)
    x, y = x[order], y[order]
    right = torch.searchsorted(x, sigma_w).clamp(1, len(x) - 1)
    share = (sigma_w - x[right - 1]) / (x[right] - x[right - 1])
    inside = (sigma_w >= x[0]) & (sigma_w <= x[-1])
    return torch.where(inside, y[right - 1] + share * (y[right] - y[right - 1]), torch.nan)
