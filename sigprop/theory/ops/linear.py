"""Linear map with independent zero-mean weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import applied
from sigprop.theory.corrections.finite_width import met, of_heavy_tails, through_weights
from sigprop.theory.corrections.gates import ActivationGradient, along_weights
from sigprop.theory.corrections.kurtosis import of_weights
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Law, Op, ParameterState
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
)

ONES = 0.03
"""Share of a gradient along all ones, beyond that of any direction, from which on what follows below is a guess."""


@dataclass(frozen=True)
class Linear(Op):
    """`y = W x + b`, `Var W = variance`, `Var b = bias_variance`, means `mean` and `bias_mean` (0).

    Forward   `K_y = fan_in * variance * K_x + bias_variance`, mean 0; with means `m' = fan_in * mean * m + bias_mean`,
              and `m' m'` and the fluctuations of `mean * sum_i x_i`, the same in all channels, beside
    Backward  `G_x = fan_out * variance * G_y`, and `fan_out * mean^2 * G_y * uniform` along all ones
              and what the mean `W^T W` makes of the part of the gradient along the signal (see `AlongSignal`);
              `g_x x = g_y W x`, so that what is along the one is along the other, beside the bias
    Weights   `E[(dL/dW)^2] = sum_tt' G_y K_x` per entry; bias `sum_tt' G_y`

    `centred` weights, those of each output less their average (weight standardization), see the input about its mean,
    by `fan_in / (fan_in - 1)` more: their products are negative.

    Exact in expectation over the weights, for any correlation across channels (dslm B.2), given the kernels of one
    network. Those of an input and of the slopes of an activation `f` that follows fluctuate together. With `H` the
    gradient above it, `c = fan_in variance K` and `v` the relative variance of the product of two tokens, the weights
    gain `e = fan_in variance v sum_tt' H E[f'' f''] K_t K_t' (1 - r^2)^2`; and the gain of a norm below gains
    `fan_out variance (1 + 2/(v width)) e`, the 2 being the weights' own share in the slopes.
    """

    carries = ALL_TRANSFORMED

    by_position: ClassVar[bool] = True
    """Whether channels are mapped, position by position."""

    reaches = 0

    fan_in: int
    fan_out: int
    variance: Tensor | float
    bias_variance: Tensor | float | None = None
    role: str = "hidden"
    centred: bool = False
    mean: float = field(default=0.0, kw_only=True)
    bias_mean: float = field(default=0.0, kw_only=True)
    tails: float = field(default=0.0, kw_only=True)
    """The excess kurtosis of the weights."""
    by_rows: bool = field(default=True, kw_only=True)
    """Whether the weights of an output are a row of the weight."""

    def _seen(self, x: Signal) -> Signal:
        if not self.centred:
            return x
        about = x.without_mean()
        return replace(about, kernel=about.kernel.scale(self.fan_in / max(self.fan_in - 1, 1)))

    def forward(self, *inputs: Signal) -> Signal:
        x = self._seen(*inputs)
        kernel = x.kernel.scale(self.fan_in * self.variance)
        if self.bias_variance is not None:
            kernel = kernel.like(kernel.values + kernel.spread(self.bias_variance))
        mean, before = torch.zeros_like(x.mean) + torch.zeros_like(kernel.diagonal), x.fluctuation
        common = Common()
        if self.mean or self.bias_mean:
            together = self._summed(x) * self.mean**2
            mean = mean + x.mean * self.fan_in * self.mean + self.bias_mean
            kernel = kernel.like(kernel.values + together) + kernel.outer(mean, mean)
            share = kernel.token_average(kernel.like(together).diagonal / kernel.diagonal.clamp_min(1e-300))
            common = Common(share=share if self.mean else 0.0)
        inherited = before.norm * (self.fan_out / self.fan_in) * self._from_input(kernel, x.kernel) ** 2
        fluctuation = Fluctuation(
            2.0 + inherited + 2.0 * inherited / self.fan_out,
            1.0 + before.pair * (self.width / x.width),
            before.pair_origin * (self.width / x.width),
        )
        return Linear.carries.signal(x, kernel, mean, self.width, fluctuation=fluctuation, common=common)

    def _summed(self, x: Signal) -> Tensor:
        """The covariance of the sum over a token's channels."""
        own, shared = x.common.uniform * (1.0 - x.common.share), x.common.share * self.fan_in
        return x.covariance.values * x.kernel.spread(own + shared) * self.fan_in

    @property
    def width(self) -> int:
        """Channels of the output."""
        return self.fan_out

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        x = self._seen(*inputs)
        directions = gradient.directions.at_part(self._from_input(output.kernel, x.kernel))
        scaled = gradient.kernel.scale(self.fan_out * self.variance)
        kernel = through_weights(scaled, x.kernel, directions, self.fan_in)
        excess = self._together(gradient, x) * (1.0 + 2.0 / x.fluctuation.pair) * self.fan_out * self.variance
        slope, rest = gradient.along_signal.slope, gradient.along_signal.rest * (self.fan_out / self.fan_in)
        if isinstance(slope, Tensor):
            slope = slope * self.fan_out * self.variance
            kernel = kernel.like(kernel.values + leaning(x.kernel.values, slope, rest))
        if kernel is not scaled and not torch.any(gradient.kernel.summed()):
            kernel = kernel.centred()  # weights keep the sum over tokens at zero, as below BatchNorm
        along, through = AlongSignal(slope, rest), ThroughActivation(gain_excess=excess)
        directions = Directions(directions.radial, response=directions.response)
        parts = {"directions": directions, "along_signal": along, "through_activation": through}
        made = Linear.carries.gradient(gradient, kernel, gradient.evidence.join(of_heavy_tails(x)), **parts)
        return (self._with_ones(made, gradient, gradient.kernel, x.width),)

    def _with_ones(self, made: Gradient, gradient: Gradient, summed: Kernel, width: int) -> Gradient:
        """With what the mean of the weights brings: the sum over outputs, the same in all channels of the input."""
        if not self.mean:
            return made
        ones = summed.scale(self.mean**2 * self.fan_out * gradient.directions.uniform)
        before, added = (item.level for item in (made.kernel, ones))
        uniform = (before * made.directions.uniform + added * width) / (before + added).clamp_min(1e-300)
        made = replace(made, kernel=made.kernel + ones, directions=replace(made.directions, uniform=uniform))
        if (
            isinstance(gradient.along_signal.slope, Tensor)
            and self.mean
            and (self.mean**2 * self.fan_out > ONES * self.variance)
        ):
            made = made.note(Status.ASSUMED, "a gradient along a signal, through weights with a mean")
        return made

    def _from_input(self, output: Kernel, seen: Kernel) -> Tensor | float:
        """Share of the squared norm of the output that independent weights bring."""
        if self.bias_variance is None and not self.mean:
            return 1.0
        level, brought = (item.level for item in (output, seen))
        return brought * self.fan_in * self.variance / level.clamp_min(1e-300)

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        return of_heavy_tails(self._seen(*inputs))

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        x = self._seen(*inputs)
        weight = self._met(gradient, x) + self._together(gradient, x) + self._along_itself(gradient, x)
        found = [ParameterState("weight", (self.fan_out, self.fan_in), self.role, self.variance, weight)]
        if self.bias_variance is not None:
            bias = gradient.summed()
            found.append(ParameterState("bias", (self.fan_out,), "bias", self.bias_variance, bias))
        return found

    def _met(self, gradient: Gradient, x: Signal) -> Tensor:
        return gradient.kernel.contract(met(x.kernel, x, gradient.directions))

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        brought = self._seen(*inputs).kernel.scale(self.fan_in * self.variance)
        return None if self.mean else of_weights(self.tails, self.fan_in, brought, output.kernel)

    def along_rows(self, gradient: Gradient, *inputs: Signal) -> float | None:
        if self.mean or not self.by_rows:
            return None
        brought = self._seen(*inputs).kernel.scale(self.fan_in * self.variance)
        return along_weights(gradient, brought, self.fan_in, self.bias_variance, self.bias_mean)

    def with_law(self, parameter: str, law: Law) -> Linear:
        if parameter == "weight":
            centred = self.centred and law.kind == "centred"
            return replace(self, variance=law.variance, mean=law.mean, tails=law.tails, centred=centred)
        return replace(self, bias_variance=law.variance, bias_mean=law.mean)

    def _along_itself(self, gradient: Gradient, x: Signal) -> Tensor | float:
        """The slope gives the weights a gradient along themselves: `variance (tr(B K)^2 + tr(B K B K))`, from channels
        that fluctuate; those of given numbers are in `sum G K`."""
        slope = gradient.along_signal.slope
        if not isinstance(slope, Tensor):
            return 0.0
        moved = applied(slope, x.kernel.values)
        fluctuating = torch.as_tensor(x.fluctuation.pair).clamp_max(1.0)
        return self.variance * (moved.diagonal().sum() ** 2 + (moved * moved.T).sum()) * fluctuating

    def _together(self, gradient: Gradient, x: Signal) -> Tensor | float:
        """What fluctuations of pairs add, the curvature `E f'' f''` being taken at the average pair."""
        return sum((self._of_activation(item, x) for item in gradient.through_activation.gradients), start=0.0)

    def _of_activation(self, above: ActivationGradient, x: Signal) -> Tensor | float:
        kernel, spread = x.kernel, x.fluctuation.pair / x.width
        if kernel.tokens < 2:
            return 0.0
        level = kernel.level
        gain = self.fan_in * self.variance / above.share
        shift, bias = spread**0.5 * level * gain, 0.0 if self.bias_variance is None else self.bias_variance
        pair = kernel.pair_average() * gain + bias
        variance = level * gain + bias
        pairs = torch.stack((pair + shift, pair - shift)).clamp(-variance, variance)
        high, low = above.function.derivative_cross_moment(variance, variance, pairs)
        apart = above.kernel.values * (1.0 - kernel.normalized().values ** 2) ** 2
        return kernel.like(apart).total() * (high - low) / 2.0 * spread**0.5 * level


def leaning(kernel: Tensor, slope: Tensor, rest: Tensor | float) -> Tensor:
    """`E (r_t + (B x)_t)(r_t' + (B x)_t')` less that of `r`."""
    both = applied(slope, applied(slope, kernel).T)
    if not isinstance(rest, Tensor):
        return both
    shared = applied(slope, rest)
    return both + shared + shared.T
