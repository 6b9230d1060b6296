"""Normal distribution in one and two dimensions, safe at zero variance and at correlation +-1."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

SQRT_TWO_PI = math.sqrt(2 * math.pi)
_TINY = 1e-300
_FAR = 38.0  # in standard deviations: the density is zero in float64 beyond
_EQUAL = 1e-13  # relative difference of two heights that is rounding
_NEAR = 1e-150  # below this, ratios of two such numbers are rounded away


def as_double(*values: Tensor | float) -> tuple[Tensor, ...]:
    """All arguments as float64 tensors on one device."""
    device = next((v.device for v in values if isinstance(v, Tensor) and v.device.type != "cpu"), None)
    return tuple(torch.as_tensor(v, dtype=torch.float64, device=device) for v in values)


def as_pair(*pair: Tensor | float) -> tuple[Tensor, ...]:
    """Two variances, the covariance and two means, which may be left out where they are zero."""
    return as_double(*pair, *[0.0] * (5 - len(pair)))


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root whose value and gradient at or below zero are zero."""
    positive = x > 0
    return torch.where(positive, torch.sqrt(torch.where(positive, x, 1.0)), 0.0)


def density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / SQRT_TWO_PI


def cumulative(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x / -math.sqrt(2))


def below(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cumulative and density."""
    return cumulative(x), density(x)


def standardized(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation (never zero) and the mean in units of it (capped where tails vanish)."""
    deviation = torch.sqrt(variance.clamp(min=_TINY))
    return deviation, (mean / deviation).clamp(-_FAR, _FAR)


def correlation(variance_x: Tensor, variance_y: Tensor, covariance: Tensor) -> Tensor:
    """Correlation rho in [-1, 1]; 0 where a variance is zero."""
    product = variance_x * variance_y
    alive = product > _TINY
    return torch.where(alive, covariance / torch.sqrt(torch.where(alive, product, 1.0)), 0.0).clamp(-1.0, 1.0)


def conditional_deviation(variance_x: Tensor, variance_y: Tensor, covariance: Tensor) -> Tensor:
    """sqrt(1 - rho^2); 1 where a variance is zero."""
    product = variance_x * variance_y
    alive = product > _TINY
    product = torch.where(alive, product, 1.0)
    return safe_sqrt(torch.where(alive, (product - covariance * covariance) / product, 1.0))


@cache
def unit_gauss_legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)


def _owen(h: Tensor, u: Tensor) -> Tensor:
    """Owen's T(h, u / h) for |u| <= |h|: (1/2pi) int_0^a exp(-h^2 (1 + t^2)/2) / (1 + t^2) dt."""
    h, u = torch.broadcast_tensors(h, u)
    slope = u / torch.where(h == 0, 1.0, h)
    total = torch.zeros_like(slope)
    nodes, weights = unit_gauss_legendre(24)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        stretch = 1 + (node * slope) ** 2
        total = total + weight * torch.exp(-0.5 * h * h * stretch) / stretch
    return slope * total / (2 * math.pi)


def _wedge(h: Tensor, u: Tensor) -> Tensor:
    """Owen's T(h, u / h) for any h and u, without forming a ratio above one.

    Uses T(h, u/h) + T(u, h/u) = (Phi(h) + Phi(u)) / 2 - Phi(h) Phi(u) for h, u >= 0 (Owen 1956, eq. 2.3).
    """
    sign = torch.sign(u) * torch.where(h < 0, -1.0, 1.0)
    h, u = h.abs(), u.abs()
    steep = u > h
    direct = _owen(torch.where(steep, u, h), torch.where(steep, h, u))
    tail_h, tail_u = cumulative(-h), cumulative(-u)
    complement = 0.5 * (tail_h + tail_u) - tail_h * tail_u
    return sign * torch.where(steep, complement - direct, direct)


def given(h: Tensor, k: Tensor, rho: Tensor, rest: Tensor) -> Tensor:
    """h - rho k, as `h - s k + s k rest^2 / (1 + |rho|)`, `s` the sign of rho: near |rho| = 1 rounding would decide."""
    toward = torch.where(rho < 0, -k, k)
    apart = torch.where((h - toward).abs() <= _EQUAL * (h.abs() + k.abs()), 0.0, h - toward)
    return apart + toward * rest**2 / (1.0 + rho.abs())


def conditional(h: Tensor, k: Tensor, rho: Tensor, rest: Tensor) -> Tensor:
    """(h - rho k) / sqrt(1 - rho^2): the standardized distance of h given k, capped."""
    return (given(h, k, rho, rest) / rest.clamp(min=1e-150)).clamp(-_FAR, _FAR)


def bivariate_cumulative(h: Tensor, k: Tensor, rho: Tensor, rest: Tensor) -> Tensor:
    """P(x < h, y < k) for a standard normal pair with correlation rho, rest = sqrt(1 - rho^2).

    (Phi(h) + Phi(k)) / 2 - T(h, a_h) - T(k, a_k) - [h and k of opposite sign] / 2, absolute error 1e-15
    (Owen 1956, eq. 2.1).
    """
    h, k = (torch.where(value.abs() < _NEAR, 0.0, value) for value in (h, k))
    at_origin = 0.5 - torch.atan2(rest, rho) / (2 * math.pi)
    if not (torch.any(h) or torch.any(k)):
        return at_origin + torch.zeros_like(h + k)
    wedges = _wedge(h, conditional(k, h, rho, rest)) + _wedge(k, conditional(h, k, rho, rest))
    opposite = torch.where((h < 0) == (k < 0), 0.0, 0.5)
    value = 0.5 * (cumulative(h) + cumulative(k)) - wedges - opposite
    return torch.where((h == 0) & (k == 0), at_origin, value.clamp(0.0, 1.0))
