"""Elementwise nonlinearity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sigprop.theory.activations import ActivationFunction, quadrature
from sigprop.theory.activations.base import as_pair
from sigprop.theory.corrections.along_signal import diagonal
from sigprop.theory.corrections.finite_width import FunctionMoments, curved_kernel, moments_of, through_function
from sigprop.theory.corrections.gates import ActivationGradient
from sigprop.theory.corrections.kurtosis import of_distinct
from sigprop.theory.corrections.pairs import fresh_fluctuation
from sigprop.theory.kernels import Dense, Kernel
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    AlongSignal,
    Common,
    Directions,
    Fluctuation,
    Gradient,
    Signal,
    Status,
    ThroughActivation,
)

SMALL = 1e-3
"""Share of what is along the signal in a gradient's energy from which on its fourth moments count."""

LARGEST = 0.03
"""Relative change of a variance, for norms of all tokens that vary together over networks, up to which its first order
holds: what tokens vary apart, as below a norm over the batch, averages out over them."""
UNSTEADY = "norms that vary too much over networks for the average network to stand for them"

ROUNDING = 1e-14
"""Share of the variance below which the differences between tokens are rounding."""


@dataclass(frozen=True)
class Activation(Op):
    """`y = f(x)` entry by entry, `x` Gaussian over channels.

    Forward   `K_y[t,t'] = E f(x_t) f(x_t')`, mean `E f(x_t)`
    Backward  `G_x[t,t'] = G_y[t,t'] E f'(x_t) f'(x_t')`
    Slope     by Stein's lemma `B_ts E f'(x_t) f'(x_s)`, and on the diagonal `sum_s B_ts E f''(x_t) f(x_s)` beside; with
              `q = f f'` it makes `B_tt B_t't' E q q'` of the kernel, in place of `E f f E f' f'`
    Radial    `E x^2 f'^2 / (E x^2 E f'^2)` of the gradient that leaves is along the signal; one that is across `y` has
              `(E x f' f)^2 / (E f^2 E x^2 E f'^2)` less

    Exact for Gaussian inputs when the activation has a closed form (dslm B.4, B.5; apjn App. A).
    """

    carries = ALL_TRANSFORMED

    by_position = True

    function: ActivationFunction
    kurtosis_of_input: Callable[[], Tensor | None] | None = None

    def bound(self, states: Any, node: Any) -> Activation:
        return replace(self, kurtosis_of_input=partial(states.kurtosis, node.inputs[0]))

    def _kurtosis(self) -> Tensor | None:
        """That of its input: made when it is asked for, since it is as large as a kernel."""
        return None if self.kurtosis_of_input is None else self.kurtosis_of_input()

    def _arguments(self, x: Signal):
        """Variances, covariances and means of all pairs; one level stands for all where tokens have the same."""
        covariance, mean = x.covariance, x.mean
        variance = covariance.diagonal
        if isinstance(covariance, Dense) and variance.ndim == 1 and _equal(variance, 1e-9) and _equal(mean, 0.0):
            level, shift = variance[:1, None], mean[:1, None]
            return level, level, covariance.values, shift, shift
        sides = covariance.left(variance), covariance.right(variance)
        return *sides, covariance.values, covariance.left(mean), covariance.right(mean)

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = x.kernel.like(self.function.cross_moment(*self._arguments(x)))
        mean = self.function.mean(x.covariance.diagonal, x.mean)
        if (kurtosis := self._kurtosis()) is not None:
            kernel = kernel.like(kernel.values + of_distinct(self.function, x.covariance, x.mean, kurtosis))
        moments = moments_of(self.function, x)
        kernel = curved_kernel(kernel, moments, x)
        parts = {"fluctuation": self._fluctuation(x, kernel, moments.norm), "common": self._common(x)}
        made = Activation.carries.signal(x, kernel, mean, **parts)
        together = moments.curved * x.covariance.squared_cosine() / x.width
        if float(torch.as_tensor(together).abs().max()) > LARGEST:
            made = made.note(Status.ASSUMED, UNSTEADY)
        if self.function.status == "exact":
            return made
        return made.note(Status.QUADRATURE, f"{self.function.name} has no closed form")

    def _common(self, x: Signal) -> Common:
        """What channels have in common, after the function; its linear part keeps what is along all ones, and
        its quadratic part, `(v E f'')^2 / 2`, what the squared norm varies."""
        before = x.common
        told = (*vars(before).values(), x.fluctuation.norm)
        if not any(isinstance(item, Tensor) for item in told) and before == Common() and x.fluctuation.norm == 2.0:
            return before
        variance, mean = _average(x)
        if not bool(variance.isfinite().all()):
            return before
        level, average = self.function.second_moment(variance, mean), self.function.mean(variance, mean)
        slope = self.function.derivative_mean(variance, mean)
        linear = slope**2 * variance
        bent = (self.function.radial.mean(variance, mean) - mean * slope) ** 2 / 2.0
        fixed = (1.0 - before.uniform) * linear + (1.0 - x.fluctuation.norm / 2.0) * bent
        uniform = 1.0 - fixed / (level - average**2).clamp_min(1e-300)
        if not isinstance(before.share, Tensor):
            return Common(uniform)
        shared = self.function.cross_moment(variance, variance, variance * before.share, mean, mean)
        return Common(uniform, (shared - average**2) / level, before.mixed * linear / level)

    def _fluctuation(self, x: Signal, made: Kernel, norm: Tensor) -> Fluctuation:
        """Fluctuation of pairs: fresh channels (see `pair_fluctuation`), and `(E[f' f'] a_x / a_y)^2` of the input's.

        `a` is the mean square of the differences between tokens, the slope is taken at the average pair.
        """
        before = x.fluctuation
        if x.kernel.tokens < 2:
            return replace(before, norm=norm)
        covariance = x.covariance
        level, mean = covariance.level, covariance.token_average(x.mean)
        pair = torch.minimum(covariance.pair_average().clamp_min(0.0), level)
        slope = self.function.derivative_cross_moment(level, level, pair, mean, mean)
        passed = (slope * _apart(covariance) / _apart(made)) ** 2
        fresh = fresh_fluctuation(self.function, pair, level - pair, mean)
        return Fluctuation(norm, fresh + (before.pair - 1.0) * passed, before.pair_inherited * passed)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (x,) = inputs
        moments = moments_of(self.function, x)
        slopes = self.function.derivative_cross_moment(*self._arguments(x))
        slopes = slopes * gradient.kernel.spread(through_function(moments, x, gradient.directions))
        kernel = gradient.kernel.like(gradient.kernel.values * slopes)
        if isinstance(kernel, Dense) and float(torch.as_tensor(gradient.directions.normed)) > 0.0:
            kernel = kernel.like(kernel.values - self._taken_out(gradient, output.kernel, x))
        slope, rest = gradient.along_signal.slope, gradient.along_signal.rest
        free, passed = gradient.kernel, kernel
        if isinstance(slope, Tensor):  # what is along the signal is no gradient independent of it
            own = diagonal(slope)
            along = own[:, None] * output.kernel.values * own
            free, passed = free.like(free.values - along), passed.like(passed.values - along * slopes)
        through = ThroughActivation((ActivationGradient(free, passed, self.function, kurtosis=self._kurtosis()),))
        made = Activation.carries.gradient(
            gradient,
            kernel,
            directions=Directions(
                self._radial(gradient.directions.radial, x),
                self._uniform(gradient.directions, moments, x),
                gradient.directions.groups,
                moments.slope_response + gradient.directions.response * moments.norm_response,
            ),
            along_signal=AlongSignal(
                self._slope(slope, slopes, x) if isinstance(slope, Tensor) else 0.0,
                rest * self._linear_share(x) if isinstance(rest, Tensor) else rest,
            ),
            through_activation=through,
        )
        return (self._steep(made, slope, slopes, output, x) if isinstance(slope, Tensor) else made,)

    def at_function(self, gradient: Gradient, slope: quadrature.Function, x: Signal) -> Gradient:
        """The gradient at another function of `x` that this is a function of; `slope(x)` is that of this along it."""
        vx, vy, covariance, mx, my = as_pair(*self._arguments(x))
        both = quadrature.cross_moment(slope, None, vx, vy, covariance, mx, my, self.function.kinks)
        kernel = gradient.kernel.like(gradient.kernel.values * both)
        parts = {"directions": Directions(), "along_signal": AlongSignal(), "through_activation": ThroughActivation()}
        made = Activation.carries.gradient(gradient, kernel, **parts)
        return made.note(Status.QUADRATURE, f"the slope of {self.function.name} along a function of its argument")

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        """By Stein's lemma `Cov(f(x), u) = E f' Cov(x, u)` for every `u` that is Gaussian together with `x`."""
        (x,) = inputs
        return Carried(self.function.derivative_mean(x.covariance.diagonal, x.mean), bent=True)

    def of_entry(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(values), self.function.derivative(values)

    def _linear_share(self, x: Signal) -> Tensor:
        """The part of the output's variance that is linear in the input: of a rest along the one, so much is along the
        other."""
        variance, mean = _average(x)
        level = self.function.second_moment(variance, mean) - self.function.mean(variance, mean) ** 2
        return self.function.derivative_mean(variance, mean) ** 2 * variance / level.clamp_min(1e-300)

    def _taken_out(self, gradient: Gradient, made: Kernel, x: Signal) -> Tensor:
        """What a norm over `n` positions of `y` takes out of a channel and slopes let through to the sum over them.

        It takes `y sum_s h_s y_s / (n s^2)`, `s^2` the variance over positions, and `f' y` has the mean `c`: with
        `r_t = sum_s H_st Cov(y_s, f'_t)` that is `(c r' + r c') / (n s^2) - c c' sum H K_y / (n s^2)^2`, of order `1/n`
        at a pair and of order one in the sum that a bias receives.
        """
        vx, vy, covariance, mx, my = as_pair(*self._arguments(x))
        function, kinks, centred = self.function, self.function.kinks, made.centred()
        both = quadrature.cross_moment(function.derivative, None, vx, vy, covariance, mx, my, kinks, function).T
        both = both - both.mean(0)
        total = centred.diagonal.sum()
        mean, row = both.diagonal() / total, (gradient.kernel.values * both).sum(0)
        one = mean[:, None] * row
        left = mean[:, None] * mean * (gradient.kernel.values * centred.values).sum()
        return (one + one.T - left) * gradient.directions.normed

    def _radial(self, share: Tensor | float, x: Signal) -> Tensor:
        variance, mean = _average(x)
        energy = (variance + mean**2) * self.function.derivative_second_moment(variance, mean)
        along = self.function.radial.second_moment(variance, mean)
        if not isinstance(share, Tensor) and share == 1.0:
            return along / energy.clamp_min(1e-300)
        both = self.function.expectation(lambda x: self.function.radial(x) * self.function(x), variance, mean) ** 2
        lost = (1.0 - share) * both / self.function.second_moment(variance, mean).clamp_min(1e-300)
        return (along - lost).clamp_min(0.0) / energy.clamp_min(1e-300)

    def _uniform(self, directions: Directions, moments: FunctionMoments, x: Signal) -> Tensor | float:
        """Of a gradient along all ones, the average slope keeps its part; one across `y` has lost what the slopes have
        in common with `y`."""
        lost = (1.0 - directions.radial) * moments.along
        if not isinstance(directions.uniform, Tensor) and directions.uniform == 1.0:
            return 1.0 - lost
        variance, mean = _average(x)
        slope = self.function.derivative_mean(variance, mean) ** 2
        kept = slope / self.function.derivative_second_moment(variance, mean).clamp_min(1e-300)
        return (1.0 - lost - (1.0 - directions.uniform) * kept).clamp_min(0.0)

    def _slope(self, slope: Tensor, slopes: Tensor, x: Signal) -> Tensor:
        own = diagonal(slope) * self.function.half_square_slope.derivative_mean(x.covariance.diagonal, x.mean)
        if slope.ndim == 1:
            return own
        between = slope - torch.diag(slope.diagonal())
        curved = (between * self.function.curvature_cross_moment(*self._arguments(x))).sum(1)
        return between * slopes + torch.diag(own + curved)

    def _steep(self, made: Gradient, slope: Tensor, slopes: Tensor, output: Signal, x: Signal) -> Gradient:
        """Fourth moments of what is along the signal, where it is not small."""
        own = diagonal(slope)
        if float((own**2 * output.kernel.diagonal).mean()) <= SMALL * float(made.energy()):
            return made
        joint = self.function.half_square_slope.cross_moment(*self._arguments(x)) - output.kernel.values * slopes
        return replace(made, kernel=made.kernel.like(made.kernel.values + own[:, None] * joint * own))


def _equal(values: Tensor, tolerance: float) -> bool:
    return bool(((values - values[0]).abs() <= tolerance * values[0].abs()).all())


def _average(x: Signal) -> tuple[Tensor, Tensor]:
    """Variance and mean of the average token."""
    return x.covariance.level, x.kernel.token_average(x.mean)


def _apart(kernel: Kernel) -> Tensor:
    """Mean square of the differences between tokens, not below what rounding leaves of them."""
    floor = ROUNDING * kernel.level + torch.finfo(torch.float64).tiny
    return torch.maximum(kernel.apart(), floor)
