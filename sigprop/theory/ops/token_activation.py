"""Elementwise nonlinearity on a dense kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.ops.activation import Activation
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class TokenActivation(Activation):
    """An activation on a dense kernel; one quadrature serves all tokens when they are alike, as after a norm."""

    def _arguments(self, x: Signal):
        covariance, mean = x.covariance.values, x.mean
        variance = covariance.diagonal()
        if bool(((variance - variance[0]).abs() <= 1e-9 * variance[0].abs()).all()) and bool((mean == mean[0]).all()):
            level, shift = variance[:1, None], mean[:1, None]
            return level, level, covariance, shift, shift
        return variance[:, None], variance[None, :], covariance, mean[:, None], mean[None, :]

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        made = super().forward(x)
        if not isinstance(x.common_share, Tensor):
            return made
        variance, mean = x.covariance.diagonal.mean(), x.mean.mean()
        level, average = self.function.second_moment(variance, mean), self.function.mean(variance, mean)
        shared = self.function.cross_moment(variance, variance, variance * x.common_share, mean, mean)
        kept = x.mixed * self.function.derivative_mean(variance, mean) ** 2 * variance / level
        return replace(made, common_share=(shared - average**2) / level, mixed=kept)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (made,) = super().backward(gradient, output, *inputs)
        if float(gradient.uniform_share) == 1.0:
            return (made,)
        (x,) = inputs
        variance, mean = x.covariance.diagonal.mean(), x.mean.mean()
        slope = self.function.derivative_mean(variance, mean) ** 2
        kept = slope / self.function.derivative_second_moment(variance, mean).clamp_min(1e-300)
        return (replace(made, uniform_share=1.0 - (1.0 - gradient.uniform_share) * kept),)
