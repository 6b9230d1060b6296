"""Moments of the positive parts of Gaussian variables: the closed forms behind every piecewise power."""

from __future__ import annotations

from torch import Tensor

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

    def __init__(
        self,
        variance_x: Tensor | float,
        variance_y: Tensor | float,
        covariance: Tensor | float,
        mean_x: Tensor | float = 0.0,
        mean_y: Tensor | float = 0.0,
    ):
        variance_x, variance_y, covariance, mean_x, mean_y = as_double(
            variance_x, variance_y, covariance, mean_x, mean_y
        )
        self.variances, self.means, self.covariance = (variance_x, variance_y), (mean_x, mean_y), covariance
        self.deviations, self.heights = zip(
            standardized(mean_x, variance_x), standardized(mean_y, variance_y), strict=True
        )
        self.rho = correlation(variance_x, variance_y, covariance)
        self.rest = conditional_deviation(variance_x, variance_y, covariance)
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
