"""BatchNorm in training mode, large batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import alignment_of
from sigprop.theory.corrections.gates import projected
from sigprop.theory.corrections.kurtosis import over_batch
from sigprop.theory.corrections.pairs import left_to_the_next
from sigprop.theory.kernels import Dense, Kernel
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.ops.layer_norm import Norm
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    EXACT,
    KEPT,
    TRANSFORMED,
    Evidence,
    Gradient,
    Signal,
    Status,
    ended,
)

FEW, FEW_CHANNELS = 4, "gains of few channels, under a gradient along them"
"""Channels below which what the average network has along them does not stand for one: a gain of one channel below two
layers received 1.6 times too much."""
STEADY = 1.01
"""The fluctuation of pairs of what weights make of given numbers, 1, with what rounding adds."""


@dataclass(frozen=True)
class BatchNorm(Norm):
    """Each channel is centred and scaled by its statistics over the batch; the kernel's tokens are the samples.

    Forward   `K_y = centred(K_x) / v`, `v` the average same-sample value of the centred kernel; mean 0
    Backward  `G_x = centred(G_y) / v`: the part common to the batch is removed
              (the part along the signal is of order 1/batch and dropped)

    What the squares of a channel have in common over the batch is gone: `norm` is `v (1 - mean r^2)`.

    Gain      `sum_tt' G_y K_y`, and what a following activation (see `ThroughActivation`) and alignment add

    Large batch. With ReLU this gives `pi/(pi-1)` per stage (apjn eq. 26 and its corrected single-stage form).
    """

    carries = ALL_TRANSFORMED.but(
        common=KEPT,
        directions=TRANSFORMED,
        along_signal=ended("what is along each channel of the batch is taken out: all of a slope that tokens share"),
        through_activation=ended("the norm takes out `sum_t g_t x_t` of every channel"),
    )

    def _level(self, x: Signal) -> tuple[Kernel, Tensor]:
        centred = x.kernel.centred()
        return centred, centred.level + self.epsilon

    def level(self, x: Signal) -> Tensor:
        """What the squares of a channel are divided by."""
        return self._level(x)[1]

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        centred, level = self._level(x)
        kernel, mean = self._scaled(centred.scale(1.0 / level), torch.zeros_like(centred.diagonal))
        fluctuation = replace(x.fluctuation, norm=x.fluctuation.norm * (1.0 - centred.squared_cosine()))
        made = BatchNorm.carries.signal(x, kernel, mean, fluctuation=fluctuation)
        return made.note(Status.ASYMPTOTIC, "BatchNorm at large batch")

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        _, level = self._level(inputs[0])
        kernel = gradient.kernel.centred().scale(self.gain_second_moment / level)
        return (self._left(gradient, kernel, *inputs),)

    def _left(self, gradient: Gradient, kernel: Kernel, x: Signal) -> Gradient:
        doubt = max(gradient.evidence.doubt, left_to_the_next(x))
        directions = replace(gradient.directions, normed=1.0)
        return BatchNorm.carries.gradient(
            gradient, kernel, replace(gradient.evidence, doubt=doubt), directions=directions
        )

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        few = inputs[0].width < FEW and isinstance(gradient.along_signal.slope, Tensor)
        return Evidence(Status.ASSUMED, FEW_CHANNELS) if few else EXACT

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        centred, level = self._level(x)
        unit = centred.scale(1.0 / level)
        return self._gain_and_bias(gradient, x, unit, torch.zeros_like(unit.diagonal))


@dataclass(frozen=True)
class FiniteBatchNorm(BatchNorm):
    """BatchNorm over `n` positions, to first order in what a finite batch does; `K` and `G` at the output.

    Forward   as `BatchNorm`
    Backward  `G_x = E[1/(v + eps)] (G - (K G + G K)/n + (K tr(K G) + 2 K G K)/n^2)` after centring `G`, which has lost
              what a slope has along the channel

    The variance `v` of a channel over the batch fluctuates; the mean of that inverse is
    `int_0^inf e^(-s eps) prod_i (1 + 2 s k_i / n)^(-1/2) ds` over the eigenvalues `k_i` of the kernel. The projection
    takes out what points along the channel. For a gradient that came through an activation of the output the terms are
    those of `ActivationGradient`; any other is taken as independent of the signal.
    """

    carries = BatchNorm.carries

    keeps_kurtosis = True

    before: Callable[[], Tensor | None] | None = field(default=None, kw_only=True)
    """The kurtosis of its input."""

    def bound(self, states: Any, node: Any) -> FiniteBatchNorm:
        """Where kernels fluctuate, what the weights below have in common with the gradient makes up for it."""
        steady = float(torch.as_tensor(states.signal(node.inputs[0]).fluctuation.pair).max()) < STEADY
        return replace(self, before=partial(states.kurtosis, node.inputs[0]) if steady else None)

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        centred, level = self._level(inputs[0])
        return over_batch(centred.dense().values / level, below[0])

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        if not self.gain_second_moment:
            return super().backward(gradient, output, *inputs)
        centred, level = self._level(inputs[0])
        count = centred.tokens
        unit = centred.values / level
        made = Dense(unit * self.gain_second_moment)
        kernel = _across(gradient, made)
        along, inner = projected(kernel, made.values)
        for item in self._unbiased(gradient).through_activation.gradients:
            one, both = item.projection(made)
            along, inner = along + one, inner + both
        scale = count * self.gain_second_moment
        values = kernel - (along + along.T) / scale + inner / scale**2
        values = Dense(values).centred().values * (self._inverse(unit / count) * self.gain_second_moment / level)
        return (self._left(gradient, Dense(values), *inputs),)

    def _inverse(self, kernel: Tensor) -> Tensor:
        """`E 1/(v + eps)` of channels with this kernel and kurtosis, in units where the mean of `v + eps` is one."""
        found = _mean_inverse(kernel)
        before = None if self.before is None else self.before()
        if before is None:
            return found
        level = kernel.diagonal()
        more = (before * level[:, None] * level).sum() / (2.0 * kernel.square().sum())
        return 1.0 + (found - 1.0) * (1.0 + more).clamp_min(0.0)


def _across(gradient: Gradient, output: Dense) -> Tensor:
    """`G` less the part `mu y` that is along each whole channel: with `M` the alignment and `mu = tr M / tr K_y` it
    loses `mu (M + M') - mu^2 K_y`."""
    if not isinstance(gradient.along_signal.slope, Tensor):
        return gradient.kernel.values
    aligned = alignment_of(gradient, output)
    part = aligned.diagonal().sum() / output.diagonal.sum().clamp_min(1e-300)
    return gradient.kernel.values - part * (aligned + aligned.T) + part**2 * output.values


def _mean_inverse(kernel: Tensor) -> Tensor:
    """`E[1 / (x^T x + e)]` of Gaussian `x` with the given covariance, `e` what its trace leaves of one."""
    values = torch.linalg.eigvalsh(kernel).clamp_min(0.0)
    rest = (1.0 - values.sum()).clamp_min(0.0)
    u = torch.linspace(-14.0, 14.0, 2001, dtype=torch.float64)
    s = u.exp()
    decay = torch.log1p(2.0 * s[:, None] * values).sum(1) / -2.0 - rest * s
    return torch.trapezoid((decay + u).exp(), u)
