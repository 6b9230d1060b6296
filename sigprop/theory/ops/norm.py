"""What all norms share: a gain and a bias per channel, behind statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import added, aligned_gain, alignment_of, weighted
from sigprop.theory.corrections.gates import activation_gain
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Law, Op, ParameterState
from sigprop.theory.states import AlongSignal, Gradient, Signal, ThroughActivation


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
        level = gradient.kernel.contract(unit) + aligned_gain(gradient, unit)
        level = level + activation_gain(self._unbiased(gradient), unit, mean, self.gain_second_moment)
        return [
            ParameterState("weight", (x.width,), "norm gain", 0.0, torch.as_tensor(level)),
            ParameterState("bias", (x.width,), "bias", self.bias_second_moment, gradient.summed()),
        ]

    def with_law(self, parameter: str, law: Law) -> Norm:
        if parameter == "weight":
            return replace(self, gain_second_moment=law.second_moment, gain_mean=law.mean)
        return replace(self, bias_second_moment=law.second_moment, bias_mean=law.mean)
