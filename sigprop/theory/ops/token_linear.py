"""A linear map over tokens, the same for every channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.carries import TRANSFORMED, Carries
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.ops.linear import Linear
from sigprop.theory.parts import Directions, ThroughActivation
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class TokenLinear(Linear):
    """A linear map over tokens, the same for every channel: what is uniform over channels stays so.

    Forward   the mean of the inputs and the bias give every output token a part common to all its channels; an output
              is made of `fan_in` tokens alike
    Weights   what is common to all channels meets the uniform share of the gradient only; so does the bias, which sums
              the gradient over channels: `width * G * uniform share`
    Backward  as Linear; the excess of the gradient counts without the share of the bias, squared

    The same numbers mix all `channels`: the products of two outputs and their norms fluctuate as
    `PositionsToChannels` says.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=TRANSFORMED,
        directions=TRANSFORMED,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    channels: int = 1

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        made = super().forward(x)
        common = self._common(x) * x.kernel.diagonal.mean() * self.fan_in * self.variance
        share = (common + (self.bias_variance or 0.0)) / made.kernel.diagonal.mean()
        pair = x.fluctuation.pair * (1.0 - share) ** 2
        mixed = x.common.mixed or (x.fluctuation.pair - 1.0) / self.channels
        return replace(
            made,
            width=self.channels,
            fluctuation=replace(made.fluctuation, norm=2.0 * pair, pair=pair),
            common=replace(made.common, share=share, mixed=mixed),
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (made,) = super().backward(gradient, output, *inputs)
        own = 1.0 - (self.bias_variance or 0.0) / output.kernel.diagonal.mean()
        through = ThroughActivation(gain_excess=gradient.through_activation.gain_excess * own**2)
        directions = Directions(uniform=gradient.directions.uniform)
        return (replace(made, directions=directions, through_activation=through),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight, *bias = super().parameters(gradient, x)
        uniform = gradient.directions.uniform
        seen = 1.0 - self._common(x) * (1.0 - uniform)
        factors = (seen, *(uniform for _ in bias))
        found = zip((weight, *bias), factors, strict=True)
        return [replace(item, grad_second_moment=item.grad_second_moment * factor) for item, factor in found]

    @staticmethod
    def _common(x: Signal) -> Tensor:
        """Share of the input that is the same in all channels: its mean, and what it has in common by itself."""
        return x.mean.square().mean() / x.kernel.diagonal.mean().clamp_min(1e-300) + x.common.share
