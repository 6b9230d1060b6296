"""Piecewise powers, linear or quadratic on each side of zero: all moments from those of positive parts."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.activations.base import ActivationFunction, Number, register
from sigprop.theory.activations.gaussian import (
    as_double,
    bivariate_cumulative,
    conditional_deviation,
    correlation,
    cumulative,
    density,
    given,
    standardized,
)


def positive_moment(power: int, variance: Tensor, mean: Tensor) -> Tensor:
    """P_a = E[max(x, 0)^a] for x ~ N(m, v); power 0 is the step function.

    P_0 = Phi(h), P_1 = m Phi(h) + s phi(h), P_a = m P_{a-1} + (a-1) v P_{a-2}, with s = sqrt(v), h = m/s.
    """
    deviation, h = standardized(mean, variance)
    if power == 0:
        return cumulative(h)
    before, value = cumulative(h), mean * cumulative(h) + deviation * density(h)
    for a in range(2, power + 1):
        before, value = value, mean * value + (a - 1) * variance * before
    return value


class PositivePair:
    """M_ab = E[max(x, 0)^a max(y, 0)^b] for a Gaussian pair; power 0 is the step function.

    Stein's lemma, E[x g] = m_x E g + v_x E g_x + c E g_y, gives a recursion down to P(x > 0, y > 0):
    M_ab = m_x M_{a-1,b} + v_x D_{a-1,b} + c D'_{a-1,b}, where D differentiates one factor. The derivative
    of a step is a delta function, which fixes one variable at zero and leaves a moment of the other.
    """

    def __init__(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor):
        self.variances, self.means, self.covariance = (vx, vy), (mx, my), c
        self.deviations, self.heights = zip(standardized(mx, vx), standardized(my, vy), strict=True)
        self.rho = correlation(vx, vy, c)
        self.rest = conditional_deviation(vx, vy, c)
        self._known: dict[tuple[int, int], Tensor] = {}

    def moment(self, a: int, b: int) -> Tensor:
        if (a, b) not in self._known:
            self._known[a, b] = self._derive(a, b)
        return self._known[a, b]

    def _derive(self, a: int, b: int) -> Tensor:
        if a == b == 0:
            return bivariate_cumulative(*self.heights, self.rho, self.rest)
        first, second = (0, 1) if a >= b else (1, 0)
        high, low = max(a, b), min(a, b)

        def at(p: int, q: int) -> Tensor:
            return self.moment(p, q) if first == 0 else self.moment(q, p)

        own = (
            self.deviations[first] * self._with_zero(first, low)
            if high == 1
            else (high - 1) * self.variances[first] * at(high - 2, low)
        )
        other = (
            self.rho * self.deviations[first] * self._with_zero(second, high - 1)
            if low == 0
            else low * self.covariance * at(high - 1, low - 1)
        )
        return self.means[first] * at(high - 1, low) + own + other

    def _with_zero(self, fixed: int, power: int) -> Tensor:
        """s E[delta(x) max(y, 0)^power], x being the fixed variable and s its standard deviation."""
        free = 1 - fixed
        mean = self.deviations[free] * given(self.heights[free], self.heights[fixed], self.rho, self.rest)
        variance = self.variances[free] * self.rest**2
        return density(self.heights[fixed]) * positive_moment(power, variance, mean)


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

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
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

    def _derivative_cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
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


@register("identity")
class Identity(TwoSlope):
    """f(x) = x."""

    def __init__(self):
        super().__init__(1.0, 1.0)
        self.name = "identity"
        self.kinks = ()

    def __call__(self, x: Tensor) -> Tensor:
        return x


@register("leaky_relu", torch.nn.functional.leaky_relu)
class LeakyRelu(TwoSlope):
    """f(x) = x for x > 0, slope x for x < 0."""

    def __init__(self, slope: float = 0.01):
        super().__init__(1.0, slope)
        self.name = f"leaky_relu({slope:g})"


@register("relu", torch.relu, torch.relu_, torch.nn.functional.relu)
class Relu(TwoSlope):
    """f(x) = max(x, 0)."""

    def __init__(self):
        super().__init__(1.0, 0.0)
        self.name = "relu"


@register("relu_squared")
class ReluSquared(ActivationFunction):
    """f(x) = max(x, 0)^2; at zero mean E f^2 = 3 v^2 / 2, E f'^2 = 2 v (Cho and Saul 2009, n = 2 and 1)."""

    name = "relu_squared"
    status = "exact"
    kinks = (0.0,)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.relu(x) ** 2

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return positive_moment(2, *as_double(variance, mean))

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return positive_moment(4, *as_double(variance, mean))

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        return PositivePair(vx, vy, c, mx, my).moment(2, 2)

    def derivative(self, x: Tensor) -> Tensor:
        return 2 * torch.relu(x)

    def derivative_mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return 2 * positive_moment(1, *as_double(variance, mean))

    def derivative_second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return 4 * positive_moment(2, *as_double(variance, mean))

    def _derivative_cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        return 4 * PositivePair(vx, vy, c, mx, my).moment(1, 1)


@register("hard_sigmoid", torch.nn.functional.hardsigmoid)
class HardSigmoid(ActivationFunction):
    """f(x) = (relu(x + 3) - relu(x - 3)) / 6; autograd has no second derivative of torch's own."""

    name = "hard_sigmoid"
    status = "exact"
    kinks = (-3.0, 3.0)

    def __call__(self, x: Tensor) -> Tensor:
        return (x + 3).clamp(0, 6) / 6

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        v, m = as_double(variance, mean)
        return (positive_moment(1, v, m + 3) - positive_moment(1, v, m - 3)) / 6

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        return self._of_pairs(1, vx, vy, c, mx, my)

    def derivative(self, x: Tensor) -> Tensor:
        return (x.abs() < 3).to(x.dtype) / 6

    def _derivative_cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        return self._of_pairs(0, vx, vy, c, mx, my)

    def _of_pairs(self, order: int, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        found = torch.zeros((), dtype=torch.float64)
        for a, b in itertools.product((3, -3), repeat=2):
            found = found + a * b * PositivePair(vx, vy, c, mx + a, my + b).moment(order, order)
        return found / 324
