"""Sine."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction, Number
from sigprop.theory.activations.gaussian import as_double
from sigprop.theory.activations.registry import register


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


def _waves(
    variance_x: Number, variance_y: Number, covariance: Number, mean_x: Number, mean_y: Number
) -> tuple[Tensor, Tensor]:
    """E cos(x - y) and E cos(x + y)."""
    vx, vy, c, mx, my = as_double(variance_x, variance_y, covariance, mean_x, mean_y)
    half = (vx + vy) / 2
    return torch.exp(c - half) * torch.cos(mx - my), torch.exp(-c - half) * torch.cos(mx + my)
