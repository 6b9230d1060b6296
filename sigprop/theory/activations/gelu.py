"""GELU (with erf)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction, Number, register
from sigprop.theory.activations.gaussian import (
    as_double,
    below,
    bivariate_cumulative,
    cumulative,
)


@register("gelu", torch.nn.functional.gelu)
class Gelu(ActivationFunction):
    """f(x) = x Phi(x).

    With u an independent standard normal, Phi(x) = E step(x - u) and phi(x) = E delta(x - u). So E f(x) f(y)
    and E f'(x) f'(y) are moments of x, y under steps and deltas of a = x - u and b = y - u', all four jointly
    Gaussian, and Stein's lemma reduces them to P(a > 0, b > 0) and one-dimensional terms at any mean.
    """

    name = "gelu"
    status = "exact"

    def __call__(self, x: Tensor) -> Tensor:
        return x * cumulative(x)

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        scale = torch.sqrt(1 + variance)
        step, bump = below(mean / scale)
        return mean * step + variance / scale * bump

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return self.cross_moment(variance, variance, variance, mean, mean)

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        x, y = _pair(vx, vy, c, mx, my)
        both = x.both()
        y_both = y.mean * both + x.covariance * x.delta_step() + y.variance * y.delta_step()
        return (
            x.mean * y_both
            + x.covariance * both
            + x.variance * x.delta_other_step()
            + x.covariance * y.delta_own_step()
        )

    def derivative(self, x: Tensor) -> Tensor:
        step, bump = below(x)
        return step + x * bump

    def derivative_mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        scale = torch.sqrt(1 + variance)
        step, bump = below(mean / scale)
        return step + bump * mean / scale**3

    def derivative_second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return self.derivative_cross_moment(variance, variance, variance, mean, mean)

    def _derivative_cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        x, y = _pair(vx, vy, c, mx, my)
        return x.both() + x.delta_own_step() + y.delta_own_step() + x.both_deltas()


class _Side:
    """One of the two variables: x ~ N(m, v) with a = x - u of variance 1 + v; c = Cov(x, y) = Cov(a, b)."""

    other: _Side
    given_zero: tuple[Tensor, Tensor, Tensor, Tensor]
    """Given a = 0: mean of b, standard deviation of b, and Phi and phi of the former in units of the latter."""

    def __init__(self, variance: Tensor, mean: Tensor, covariance: Tensor, determinant: Tensor):
        self.variance, self.mean, self.covariance = variance, mean, covariance
        self.total = 1 + variance
        self.scale = torch.sqrt(self.total)
        self.peak = torch.exp(mean**2 / (-2.0 * self.total)) / torch.sqrt(2.0 * math.pi * self.total)  # of a at zero
        self.determinant = determinant  # of the covariance matrix of (a, b)

    def both(self) -> Tensor:
        """P(a > 0, b > 0)."""
        other, product = self.other, self.scale * self.other.scale
        return bivariate_cumulative(
            self.mean / self.scale,
            other.mean / other.scale,
            self.covariance / product,
            torch.sqrt(self.determinant) / product,
        )

    def delta_step(self) -> Tensor:
        """E[delta(a) step(b)]."""
        return self.peak * self.given_zero[2]

    def delta_other_step(self) -> Tensor:
        """E[y delta(a) step(b)]."""
        mean, deviation, step, bump = self.given_zero
        shared = self.other.variance - self.covariance**2 / self.total
        return self.peak * (mean * step + shared / deviation * bump)

    def delta_own_step(self) -> Tensor:
        """E[x delta(a) step(b)]; given a = 0, x has mean m / (1 + v) and covariance c / (1 + v) with b."""
        _, deviation, step, bump = self.given_zero
        return self.peak * (self.mean * step + self.covariance / deviation * bump) / self.total

    def both_deltas(self) -> Tensor:
        """E[x y delta(a) delta(b)], from the conditional mean and covariance of (x, y) at a = b = 0."""
        c, d, other = self.covariance, self.determinant, self.other
        mean_x = (other.total * self.mean - c * other.mean) / d
        mean_y = (self.total * other.mean - c * self.mean) / d
        exponent = self.mean * mean_x + other.mean * mean_y
        return torch.exp(-0.5 * exponent) / (2 * math.pi * torch.sqrt(d)) * (mean_x * mean_y + c / d)


def _pair(vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> tuple[_Side, _Side]:
    determinant = 1 + vx + vy + (vx * vy - c * c).clamp(min=0.0)
    x, y = _Side(vx, mx, c, determinant), _Side(vy, my, c, determinant)
    x.other, y.other = y, x
    means = [side.other.mean - c * side.mean / side.total for side in (x, y)]
    deviations = [torch.sqrt(determinant) / side.scale for side in (x, y)]
    heights = (mean / deviation for mean, deviation in zip(means, deviations, strict=True))
    found = zip(means, deviations, *below(torch.stack(torch.broadcast_tensors(*heights))), strict=True)
    x.given_zero, y.given_zero = found
    return x, y
