"""Activations whose moments are elementary functions: exponential, sine, error function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction, Number, register
from sigprop.theory.activations.gaussian import as_double, bivariate_cumulative

# -- The exponential


@register("exp", torch.exp)
class Exponential(ActivationFunction):
    """f(x) = f'(x) = e^x, with log-normal moments: E e^(x + y) = exp(m_x + m_y + (v_x + v_y) / 2 + c)."""

    name = "exp"
    status = "exact"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.exp(mean + variance / 2)

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.exp(2 * mean + 2 * variance)

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        return torch.exp(mx + my + (vx + vy) / 2 + c)

    derivative = __call__
    derivative_mean = mean
    derivative_second_moment = second_moment
    _derivative_cross_moment = _cross_moment


# -- Sine


@register("sin", torch.sin)
class Sine(ActivationFunction):
    """f(x) = sin x. E cos(x - y) and E cos(x + y) are damped by half the variance of x -+ y."""

    name = "sin"
    status = "exact"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.sin(x)

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.exp(-variance / 2) * torch.sin(mean)

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.sin(mean) ** 2 * torch.exp(-2 * variance) - 0.5 * torch.expm1(-2 * variance)

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        difference, total = _waves(vx, vy, c, mx, my)
        return 0.5 * (difference - total)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def derivative_mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.exp(-variance / 2) * torch.cos(mean)

    def derivative_second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return 1 - self.second_moment(variance, mean)

    def _derivative_cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        difference, total = _waves(vx, vy, c, mx, my)
        return 0.5 * (difference + total)


def _waves(vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> tuple[Tensor, Tensor]:
    """E cos(x - y) and E cos(x + y)."""
    half = (vx + vy) / 2
    return torch.exp(c - half) * torch.cos(mx - my), torch.exp(-c - half) * torch.cos(mx + my)


# -- The error function


@register("erf", torch.erf, torch.special.erf)
class Erf(ActivationFunction):
    """f(x) = erf(x) = 2 Phi(sqrt(2) x) - 1.

    Phi(sqrt(2) x) is the chance that an independent normal of variance 1/2 stays below x, so the cross moment
    is a bivariate normal probability; at zero mean (2 / pi) asin(2 c / sqrt((1 + 2 v_x)(1 + 2 v_y)))
    (Williams 1997). f' is Gaussian, hence so are its moments.
    """

    name = "erf"
    status = "exact"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.erf(x)

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.erf(mean / torch.sqrt(1 + 2 * variance))

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return self.cross_moment(variance, variance, variance, mean, mean)

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        scale_x, scale_y = torch.sqrt(1 + 2 * vx), torch.sqrt(1 + 2 * vy)
        rho = 2 * c / (scale_x * scale_y)
        if not (torch.any(mx) or torch.any(my)):
            return 2 / math.pi * torch.asin(rho) + torch.zeros_like(mx + my)
        rest = torch.sqrt((1 - rho) * (1 + rho))
        h, k = math.sqrt(2) * mx / scale_x, math.sqrt(2) * my / scale_y
        both = bivariate_cumulative(h, k, rho, rest)
        return 4 * both - torch.erf(mx / scale_x) - torch.erf(my / scale_y) - 1

    def derivative(self, x: Tensor) -> Tensor:
        return 2 / math.sqrt(math.pi) * torch.exp(-x * x)

    def derivative_mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        scale = 1 + 2 * variance
        return 2 / torch.sqrt(math.pi * scale) * torch.exp(-mean * mean / scale)

    def derivative_second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        scale = 1 + 4 * variance
        return 4 / math.pi / torch.sqrt(scale) * torch.exp(-2 * mean * mean / scale)

    def _derivative_cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        determinant = 1 + 2 * vx + 2 * vy + 4 * (vx * vy - c * c).clamp(min=0.0)
        exponent = mx**2 * (1 + 2 * vy) + my**2 * (1 + 2 * vx) - 4 * c * mx * my
        return 4 / math.pi / torch.sqrt(determinant) * torch.exp(-exponent / determinant)
