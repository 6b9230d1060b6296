"""E f(x) f(y) for any function: the Hermite (Mehler) series in the correlation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sigprop.theory.activations.gaussian import correlation
from sigprop.theory.activations.quadrature import Function, rule, samples

TERMS = 96


def coefficients(values: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """c_k = E[f(m + s z) he_k(z)], he_k orthonormal, for k < TERMS: [..., n] -> [TERMS, ...]."""
    if z.dim() == 1:
        return (values @ torch.stack(list(_weighted_basis(z, w)), dim=1)).movedim(-1, 0)
    return torch.stack([(values * basis).sum(-1) for basis in _weighted_basis(z, w)])


def _weighted_basis(z: Tensor, w: Tensor) -> Iterator[Tensor]:
    """w he_0(z), w he_1(z), ... by the three-term recursion."""
    before, basis = torch.zeros_like(z), w
    for k in range(TERMS):
        yield basis
        before, basis = basis, (z * basis - k**0.5 * before) / (k + 1) ** 0.5


def cross_moment(
    function: Function,
    variance_x: Tensor,
    variance_y: Tensor,
    covariance: Tensor,
    mean_x: Tensor,
    mean_y: Tensor,
    kinks: tuple[float, ...],
    slope_x: Tensor,
    slope_y: Tensor,
) -> Tensor:
    """E f(x) f(y) = sum_k c_k(x) c_k(y) rho^k.

    The coefficients are per token, so a T x T kernel costs T quadratures and TERMS elementwise steps. What is
    left after TERMS terms is known at rho = 1 by Parseval, sum c_k^2 = E f^2, and so is its slope,
    sum k c_k^2 = v E f'^2 (given as `slope`); a single power of rho that has both stands for the rest.
    """
    rho, _ = correlation(variance_x, variance_y, covariance)
    left, rest_x, power_x = _series(function, variance_x, mean_x, kinks, slope_x)
    same = variance_x is variance_y and torch.equal(mean_x, mean_y)
    right, rest_y, power_y = (left, rest_x, power_x) if same else _series(function, variance_y, mean_y, kinks, slope_y)
    power = 0.5 * (power_x + power_y)
    even = torch.where(rho < 0, 0.0, 1.0)
    total = torch.sqrt(rest_x * rest_y) * even * rho.abs().clamp(min=1e-30) ** (power - TERMS + 1)
    for k in reversed(range(TERMS)):
        total = total * rho + left[k] * right[k]
    return total


def _series(
    function: Function, variance: Tensor, mean: Tensor, kinks: tuple[float, ...], slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients, the unresolved part of E f^2, and the power of rho that stands for it."""
    z, w = rule(variance, mean, kinks)
    values = samples(function, variance, mean, z)
    c = coefficients(values, z, w)
    second_moment = (values * values * w).sum(-1)
    rest = second_moment - (c * c).sum(0)
    resolved = rest <= 1e-13 * second_moment
    orders = torch.arange(TERMS, dtype=c.dtype, device=c.device).view(-1, *[1] * (c.dim() - 1))
    power = (slope - (orders * c * c).sum(0)) / torch.where(resolved, 1.0, rest)
    power = power.detach().clamp(TERMS, 100 * TERMS)
    return c, torch.where(resolved, 0.0, rest), power
