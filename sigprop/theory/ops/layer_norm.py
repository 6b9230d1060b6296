"""What all norms share, a gain and a bias per channel behind statistics; and LayerNorm, with first-order corrections in
1/width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import added, aligned_gain, alignment_of, weighted
from sigprop.theory.corrections.finite_width import before_norm, below_norm, left_open
from sigprop.theory.corrections.gates import activation_gain
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Carried, Law, Op, ParameterState
from sigprop.theory.ops.linear import ONES
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    AlongSignal,
    Common,
    Directions,
    Evidence,
    Fluctuation,
    Gradient,
    Signal,
    Status,
    ThroughActivation,
    ended,
)

LARGEST = 0.25
"""Relative variance of squared norms, beyond that of Gaussian channels, up to which dividing by them is followed."""
ALONG_ONES = "a gradient along all ones, below weights with a mean, through a norm"
UNSTEADY = "norms that vary too much over networks for what dividing by them does to be known"


@dataclass(frozen=True)
class Norm(Op):
    """`y = gain * unit + bias`, `unit` what the statistics make of `x`.

    Forward   `K_y = E gain^2 K_unit + E bias^2 + E gain E bias (m + m')`, mean `E gain m + E bias`
    """

    gain_second_moment: Tensor | float = 1.0
    bias_second_moment: Tensor | float = 0.0
    epsilon: float = 1e-5
    gain_mean: float | None = field(default=None, kw_only=True)
    """The root of the second moment unless given: all gains are one number."""
    bias_mean: float = field(default=0.0, kw_only=True)

    @property
    def _gain_mean(self) -> Tensor | float:
        return self.gain_second_moment**0.5 if self.gain_mean is None else self.gain_mean

    def _scaled(self, unit: Kernel, mean: Tensor) -> tuple[Kernel, Tensor]:
        """Kernel and mean behind gain and bias."""
        values = unit.values * unit.spread(self.gain_second_moment) + unit.spread(self.bias_second_moment)
        mean = mean * unit.per_token(self._gain_mean)
        if self.bias_mean:
            values = values + self.bias_mean * (unit.left(mean) + unit.right(mean))
            mean = mean + self.bias_mean
        return unit.like(values), mean

    def _unbiased(self, gradient: Gradient) -> Gradient:
        """The gradient as one that belongs to `gain * unit`: activations above see that, shifted."""
        if not self.bias_mean or not gradient.through_activation.gradients:
            return gradient
        through = gradient.through_activation
        found = tuple(item.behind(self.bias_mean) for item in through.gradients)
        return replace(gradient, through_activation=ThroughActivation(found, through.gain_excess))

    def _across(
        self, gradient: Gradient, output: Kernel, scale: Tensor, average: Callable[[Tensor], Tensor] = torch.clone
    ) -> tuple[Kernel, AlongSignal]:
        """What the projections `1 - y y^T / |y|^2` of both tokens leave of `G_y`, and the part along the signal below.

        With `M` the alignment of gradient and output and `mu_t` its diagonal over that of `K_y`, averages over what a
        squared norm is taken over: `G_y` loses `mu_t M[t,t'] + M[t',t] mu_t' - mu_t K_y mu_t'`, `B` loses `mu`.
        """
        kernel, slope = gradient.kernel, gradient.along_signal.slope
        if not isinstance(slope, Tensor):
            return kernel, AlongSignal()
        aligned = alignment_of(gradient, output)
        removed = average(aligned.diagonal()) / average(output.diagonal).clamp_min(1e-300)
        one, kept = removed[:, None] * aligned, added(slope, -removed)
        factor = self.gain_second_moment / (scale[:, None] * scale)
        below = AlongSignal(weighted(kept, factor), gradient.along_signal.rest * scale[:, None] / scale)
        return kernel.like(kernel.values - one - one.T + removed[:, None] * output.values * removed), below

    def _gain_and_bias(self, gradient: Gradient, x: Signal, unit: Kernel, mean: Tensor) -> list[ParameterState]:
        level = gradient.kernel.contract(unit)
        if isinstance(gradient.along_signal.slope, Tensor):
            gain = torch.as_tensor(self.gain_second_moment, dtype=torch.float64).clamp_min(1e-300)
            level = level + aligned_gain(gradient, unit.scale(gain)) / gain
        level = level + activation_gain(self._unbiased(gradient), unit, mean, self.gain_second_moment)
        return [
            ParameterState("weight", (x.width,), "norm gain", 0.0, torch.as_tensor(level)),
            ParameterState("bias", (x.width,), "bias", self.bias_second_moment, gradient.summed()),
        ]

    def with_law(self, parameter: str, law: Law) -> Norm:
        if parameter == "weight":
            return replace(self, gain_second_moment=law.second_moment, gain_mean=law.mean)
        return replace(self, bias_second_moment=law.second_moment, bias_mean=law.mean)


@dataclass(frozen=True)
class LayerNorm(Norm):
    """`y = gain * (x - mean(x)) / std(x) + bias`, statistics over the channels of each token.

    With `r` the cosine of two tokens, `d` the width, `v` the norm fluctuation and `u` the uniform share of `x`:

    Forward   same token 1; different tokens `r [1 - v (1 - r^2) / (4 (d - 1))]`; mean 0
    Backward  `G_x = G_y / (s_t s_t') * (1 - ((2 - r^2) radial + uniform)/d) / (1 - (u + v (3 + r^2)/4)/d)`

    For independent Gaussian channels (`v=2, u=1`, radial = uniform = 1) the same-token factor is
    `(d-2)/(d-3)`. The gradient that leaves is orthogonal to `x` and to the all-ones direction, so shares
    become 0. Of first order in `1/d`. Corrects dslm B.6.

    `G_y` is what is left of it across the output (see `Norm._across`). With `m` the diagonal of their alignment `M`:

    Gain      `sum_tt' G_y K_y + (sum_t m_t)^2 + sum_tt' M[t,t'] M[t',t]`, and what an activation adds
              (see `ThroughActivation`)
    """

    carries = ALL_TRANSFORMED.but(through_activation=ended("each token is scaled by itself and loses what is along it"))

    affine: bool = True

    by_position = True

    centres = True

    def _scale(self, x: Signal) -> tuple[Kernel, Tensor]:
        """Moments about what the norm subtracts, and the per-token scale it divides by."""
        kernel, share = x.covariance if self.centres else x.kernel, x.common.share
        if self.centres and (isinstance(share, Tensor) or share):
            kernel = kernel.scale_diagonal(1.0 - share)
        return kernel, (kernel.diagonal + self.epsilon).sqrt()

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, scale = self._scale(x)
        cosine = kernel.normalized()
        shrink = before_norm(cosine, x)
        ratio = kernel.diagonal.clamp_min(torch.finfo(scale.dtype).tiny).sqrt() / scale
        unit = cosine.like(cosine.values * shrink * cosine.left(ratio) * cosine.right(ratio))
        made, mean = self._scaled(unit, torch.zeros_like(unit.diagonal) if self.centres else x.mean / scale)
        kept, before = self._kept(x) ** 2, x.fluctuation
        return LayerNorm.carries.signal(
            x,
            made,
            mean,
            evidence=x.evidence.join(Evidence(Status.ASYMPTOTIC, "normalization to first order in 1/width")),
            fluctuation=Fluctuation(0.0, before.pair / kept, before.pair_inherited / kept),
            common=Common(uniform=0.0) if self.centres else x.common,
        )

    def _kept(self, x: Signal) -> Tensor | float:
        """Share of the squared norm that centring leaves."""
        return torch.as_tensor(1.0 - x.common.share).clamp_min(1e-3) if self.centres else 1.0

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (x,) = inputs
        kernel, scale = self._scale(x)
        grad = gradient.kernel
        factor, spread = below_norm(kernel.normalized(), x, gradient.directions, self.centres)
        evidence = gradient.evidence.doubted(left_open(factor))
        factor = factor * grad.spread(self.gain_second_moment) / (grad.left(scale) * grad.right(scale))
        grad, along = self._across(gradient, output.kernel, scale)
        kernel = grad.like(grad.values * factor)
        uniform = gradient.directions.uniform
        left = Directions(0.0, 0.0 if self.centres else uniform, response=-1.0)
        made = LayerNorm.carries.gradient(gradient, kernel, evidence, directions=left, along_signal=along)
        if float(torch.max(spread)) - 2.0 > LARGEST * x.width:
            made = made.note(Status.ASSUMED, UNSTEADY)
        if self.centres and float(torch.as_tensor(uniform).max()) > 1.0 + ONES * x.width:
            made = made.note(Status.ASSUMED, ALONG_ONES)
        return (made,)

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        _, scale = self._scale(inputs[0])
        gain = torch.as_tensor(self.gain_second_moment, dtype=torch.float64).sqrt()
        return Carried(output.kernel.per_token(gain) / scale)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        if not self.affine:
            return []
        (x,) = inputs
        kernel, scale = self._scale(x)
        unit = kernel.like(kernel.values / (kernel.left(scale) * kernel.right(scale)))
        mean = torch.zeros_like(scale) if self.centres else x.mean / scale
        found = self._gain_and_bias(gradient, x, unit, mean)
        return found if self.centres else found[:1]


@dataclass(frozen=True)
class RMSNorm(LayerNorm):
    """`y = gain * x / rms(x)`: as LayerNorm without centring, so the mean of a token survives.

    Forward   as LayerNorm about zero, mean `m / rms`
    Backward  as LayerNorm without the uniform direction; for independent Gaussian channels
              `G_x = G_y / rms^2 * (d-1)/(d-2)` (abc D.2 with the next order)
    """

    epsilon: float = 1e-6

    centres = False
