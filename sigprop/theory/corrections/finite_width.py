"""Finite width: squared norms fluctuate over `d` channels, and the gradient below a norm goes across the signal.

A stack of layers multiplies factors `1 + c/d`; all that makes up `c` belongs together, since its terms nearly cancel.
A signal carries `v`, `d` times the relative variance of its squared norm, and `u`, `d` times its share along the
all-ones direction. A gradient carries `d` times its shares `p` along the signal and `q` along all ones, and its
response `s = d log G / d log n` to the squared norm `n` of the signal: -1 below a norm, 1 below a mean square.

| step | what it does |
|---|---|
| norm | `E 1/n`: `1 / (1 - (u + v)/d)`; it takes out `(p + q)/d` |
| weights `W h` | `W` is free only beside what `W h` fixes: `1 - (1 - p) (2 - r^2) / fan_in` of the energy `W^T g` |
| a function `f` | `f'^2` is large where `f^2` is, and the gradient below a norm then small: `1 + s Cov(f'^2, f^2)/d` |
| beside `h = f` | what goes across `h` lacks the entries where `f'^2` is large: `1 - (1 - p) cov(f'^2, f^2)/d` |
| weight gradients | `E G K = E G E K (1 + v/d)^s` |
| attention | keys and values of one input: a query pulls the output to itself, terms of order `score variance / d` |

`cov` is relative, at one channel, and `Cov` over channels of which a norm below has fixed the squared norm (`v = 0` in
place of 2) and, where it centres, the mean (`u = 0` in place of 1): both are regressed out.

Assumption: fresh Gaussian weights between norms, first order in 1/d at every step; over steps factors multiply.
Exact to that order for one token in a stack of linear maps, functions and norms; for two tokens with cosine `r` the
powers of `r` are those of Gaussian channels. Reference: docs/evidence/compositions.md; `d / (d - 2)` per norm and its
like: Hanin & Nica (2020), Products of many large random matrices, for the growth `exp(c L / d)` without norms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sigprop.theory.activations.quadrature import rule
from sigprop.theory.corrections import ACTIVE
from sigprop.theory.corrections.pairs import fixed_below_batch_norm
from sigprop.theory.states import Evidence

if TYPE_CHECKING:
    from sigprop.theory.activations import ActivationFunction
    from sigprop.theory.kernels import Kernel
    from sigprop.theory.states import Directions, Signal

Number = Tensor | float
NAME = "finite_width"
TINY = 1e-300
NEGLECTED = 0.15
"""Of the sum of all corrections of first order along a path, the error that is left: what the compositions of
docs/evidence/compositions.md show, those that were developed on."""
OF_RELU = 5.0
"""Relative variance of `f^2`, where that of a function is out of reach."""


class FunctionMoments(NamedTuple):
    """Of a function over channels; covariances are relative."""

    norm: Tensor
    """`d` times the variance of the squared norm of the output, with what the input's norm varies."""
    joint: Tensor
    """`Cov(f'^2, f^2)` at one channel."""
    slopes: Tensor
    """The same of the averages over channels, times `d`."""
    norm_response: Tensor
    """`d log E f^2 / d log n`."""
    slope_response: Tensor
    """`d log E f'^2 / d log n`."""
    along: Tensor
    """`(E f f')^2 / (E f^2 E f'^2)`: what the slopes have in common with the output."""
    curved: Tensor
    """What `E f^2` changes by where the squared norm does not fluctuate, relative and times `d`."""
    slopes_curved: Tensor
    """The same of `E f'^2`."""


def moments_of(function: ActivationFunction, x: Signal) -> FunctionMoments:
    """Of the average token of `x`, which is asked for forward and backward."""
    known = vars(x).setdefault("_moments", {})
    if function not in known:
        known[function] = _moments(function, x)
    return known[function]


def _moments(function: ActivationFunction, x: Signal) -> FunctionMoments:
    """A function that grows too fast for its moments to exist is taken as a ReLU."""
    covariance = x.covariance
    variance, mean = covariance.level, x.kernel.token_average(x.mean)
    z, weights = rule(variance, mean, function.kinks)
    deviation = variance.clamp_min(TINY).sqrt()
    values = mean[..., None] + deviation[..., None] * z
    made, slope = function(values), function.derivative(values)
    square, steep = made**2, slope**2
    if not _settled(square**2 * weights):
        one, none = torch.ones_like(variance), torch.zeros_like(variance)
        beyond = x.fluctuation.norm - 2.0
        return FunctionMoments(OF_RELU + beyond * one, none, none, one, none, one / 2.0, none, none)

    def average(item: Tensor) -> Tensor:
        return (item * weights).sum(-1)

    first, second = average(square).clamp_min(TINY), average(steep).clamp_min(TINY)
    level, scatter = variance + mean**2, (2.0 * variance * (variance + 2.0 * mean**2)).clamp_min(TINY)

    def with_norm(item: Tensor, size: Tensor) -> Tensor:
        """`Cov(item, x^2) E x^2 / (Var x^2 E item)`."""
        return (average(item * values**2) - size * level) * level / scatter / size

    steady, centred = x.fluctuation.norm - 2.0, 1.0 - x.common.uniform
    one, two = with_norm(square, first), with_norm(steep, second)
    even, even_slope = average(square * z) / first, average(steep * z) / second
    free, inherited = average((square / first[..., None]) ** 2) - 1.0 - centred * even**2, one**2 * steady
    curve = (z**4 - 6.0 * z**2 + 3.0) / 8.0
    joint = average((square / first[..., None]) * (steep / second[..., None])) - 1.0
    return FunctionMoments(
        joint=joint,
        norm=(free + inherited + free * _positive(inherited) / x.width).clamp_min(0.0),
        slopes=joint + steady * one * two - centred * even * even_slope,
        norm_response=one,
        slope_response=two,
        along=average(made * slope) ** 2 / (first * second),
        curved=steady * average(square * curve) / first,
        slopes_curved=steady * average(steep * curve) / second,
    )


def _positive(value: Number) -> Tensor:
    return torch.as_tensor(value).clamp_min(0.0)


def _settled(terms: Tensor) -> bool:
    """Whether a Gaussian moment lies within reach: little of it at the ends of the grid."""
    ends = terms[..., :10].sum(-1) + terms[..., -10:].sum(-1)
    return bool((torch.isfinite(terms).all(-1) & (ends <= 1e-8 * terms.sum(-1))).all())


def through_weights(kernel: Kernel, x: Kernel, directions: Directions, fan_in: int) -> Kernel:
    """The energy of `W^T g` where part of `W` is fixed by the output that `g` goes across."""
    radial = directions.radial
    if (fixed := fixed_below_batch_norm(directions, fan_in)) != 1.0:
        return kernel.scale(fixed)
    if NAME not in ACTIVE.get() or (not isinstance(radial, Tensor) and radial == 1.0):
        return kernel
    lost = kernel.spread((1.0 - radial) / fan_in) * (2.0 - x.normalized().values ** 2)
    return kernel.like(kernel.values * (1.0 - lost).clamp_min(0.0))


def met(kernel: Kernel, x: Signal, directions: Directions) -> Kernel:
    """The kernel that a gradient meets in weights, with how both follow the squared norm."""
    response = directions.response
    if NAME not in ACTIVE.get() or (not isinstance(response, Tensor) and response == 0.0):
        return kernel
    spread = kernel.spread(torch.log1p(torch.as_tensor(x.fluctuation.norm) / x.width) * response)
    return kernel.like(kernel.values * torch.exp(spread * (1.0 + kernel.normalized().values ** 2) / 2.0))


def curved_kernel(kernel: Kernel, moments: FunctionMoments, x: Signal) -> Kernel:
    """The kernel behind a function, where squared norms do not fluctuate as those of Gaussian channels."""
    if NAME not in ACTIVE.get():
        return kernel
    return kernel.like(kernel.values * (1.0 + kernel.spread(moments.curved / x.width)))


def through_function(moments: FunctionMoments, x: Signal, directions: Directions) -> Tensor:
    """What the energy of a gradient gains in a function, beyond that of independent factors."""
    if NAME not in ACTIVE.get():
        return torch.ones(())
    across = (1.0 - directions.radial) * moments.joint
    return 1.0 + (directions.response * moments.slopes + moments.slopes_curved - across) / x.width


def before_norm(cosine: Kernel, x: Signal) -> Tensor | float:
    """The cosine of two tokens lies lower than that of their average kernel."""
    if NAME not in ACTIVE.get():
        return 1.0
    spread = cosine.spread(x.fluctuation.norm) * (1.0 - cosine.values**2)
    return 1.0 - spread / (4.0 * max(x.width - 1, 1))


def below_norm(cosine: Kernel, x: Signal, directions: Directions, centres: bool) -> tuple[Tensor | float, Tensor]:
    """The factor of the energy that a norm lets through, and how much the norms it divides by vary."""
    factors = (x.fluctuation.norm, x.common.uniform, directions.radial, directions.uniform)
    squared, (norm, ones, radial, uniform) = cosine.values**2, cosine.spread_all(*factors)
    varied = norm * (3.0 + squared) / 4.0 + (ones if centres else 0.0)
    if NAME not in ACTIVE.get():
        return 1.0, varied
    removed = (2.0 - squared) * radial + (uniform if centres else 0.0)
    return (1.0 - removed / x.width) / (1.0 - varied / x.width), varied


def of_one_input(width: float) -> float:
    """Channels of the input that keys and values were both made of: by as many, what they share is divided."""
    return width if NAME in ACTIVE.get() else math.inf


def left_open(factor: Tensor | float) -> float:
    """What the orders that are neglected may add to an error, from the factor of the first order."""
    return NEGLECTED * float((torch.as_tensor(factor) - 1.0).abs().max())


def of_heavy_tails(x: Signal) -> Evidence:
    """The same of averages over networks whose squared norms scatter, so that a few large ones carry them."""
    beyond = float(torch.as_tensor(x.fluctuation.norm).max()) - OF_RELU
    return Evidence(doubt=2.0 * NEGLECTED * max(beyond, 0.0) / x.width)
