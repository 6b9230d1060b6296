"""The two-slope family: everything that is linear on each side of zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.activations.base import ActivationFunction, Number
from sigprop.theory.activations.gaussian import as_double
from sigprop.theory.activations.positive_part import PositivePair, positive_moment
from sigprop.theory.activations.registry import register


@register("two_slope")
class TwoSlope(ActivationFunction):
    """f(x) = a x for x > 0, b x for x < 0.

    f = b x + (a - b) relu(x), so all moments follow from those of relu (Cho and Saul 2009 at zero mean).
    At zero mean: E f^2 = (a^2 + b^2) v / 2, E f = (a - b) sqrt(v / 2 pi), E f'^2 = (a^2 + b^2) / 2.
    """

    status = "exact"
    kinks = (0.0,)

    def __init__(self, positive: float = 1.0, negative: float = 0.0):
        require(math.isfinite(positive), "positive", positive, "a finite slope")
        require(math.isfinite(negative), "negative", negative, "a finite slope")
        self.positive, self.negative = positive, negative
        self.name = f"two_slope({positive:g}, {negative:g})"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, self.positive * x, self.negative * x)

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return self.negative * mean + self._bend * positive_moment(1, variance, mean)

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        upper, lower = positive_moment(2, variance, mean), positive_moment(2, variance, -mean)
        return self.positive**2 * upper + self.negative**2 * lower

    def cross_moment(
        self,
        variance_x: Number,
        variance_y: Number,
        covariance: Number,
        mean_x: Number = 0.0,
        mean_y: Number = 0.0,
    ) -> Tensor:
        vx, vy, c, mx, my = as_double(variance_x, variance_y, covariance, mean_x, mean_y)
        linear = c + mx * my + torch.zeros_like(vx + vy)
        if self._bend == 0:
            return self.negative**2 * linear
        both = PositivePair(vx, vy, c, mx, my).moment(1, 1)
        if self.negative == 0:
            return self.positive**2 * both
        mixed = mx * positive_moment(1, vy, my) + my * positive_moment(1, vx, mx)
        mixed = mixed + c * (positive_moment(0, vx, mx) + positive_moment(0, vy, my))
        return self.negative**2 * linear + self.negative * self._bend * mixed + self._bend**2 * both

    def derivative(self, x: Tensor) -> Tensor:
        return self.negative + self._bend * (x > 0).to(x.dtype)

    def derivative_mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return self.negative + self._bend * positive_moment(0, *as_double(variance, mean))

    def derivative_second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        slope = positive_moment(0, *as_double(variance, mean))
        return self.negative**2 + (self.positive**2 - self.negative**2) * slope

    def derivative_cross_moment(
        self,
        variance_x: Number,
        variance_y: Number,
        covariance: Number,
        mean_x: Number = 0.0,
        mean_y: Number = 0.0,
    ) -> Tensor:
        vx, vy, c, mx, my = as_double(variance_x, variance_y, covariance, mean_x, mean_y)
        if self._bend == 0:
            return self.negative**2 + torch.zeros_like(vx + vy + c + mx + my)
        both = PositivePair(vx, vy, c, mx, my).moment(0, 0)
        if self.negative == 0:
            return self.positive**2 * both
        either = positive_moment(0, vx, mx) + positive_moment(0, vy, my)
        return self.negative**2 + self.negative * self._bend * either + self._bend**2 * both

    @property
    def radial(self) -> ActivationFunction:
        """x f'(x) = f(x)."""
        return self

    def radial_moments(self, variance_x: Number, variance_y: Number, covariance: Number) -> tuple[Tensor, ...]:
        joint = self.cross_moment(variance_x, variance_y, covariance)
        slopes = self.derivative_cross_moment(variance_x, variance_y, covariance)
        return joint, slopes, slopes, joint

    @property
    def _bend(self) -> float:
        return self.positive - self.negative
