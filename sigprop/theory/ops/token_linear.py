"""A linear map over tokens, the same for every channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import TRANSFORMED, Carries
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.ops.linear import ONES, Linear
from sigprop.theory.parts import Directions, ThroughActivation
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status


@dataclass(frozen=True)
class TokenLinear(Linear):
    """A linear map over tokens, the same for all `channels`: what is uniform over channels stays so.

    It stands between `PositionsToChannels`, which makes inputs of the tokens, and `ChannelsToPositions`, which makes
    tokens of its outputs: together `y_s = sum_t W_st x_t + b_s`, in expectation over `W`. One draw of `W`, which does
    not average out in one network, is `DrawnTokenLinear`.

    Forward   the mean of the inputs and the bias give every output token a part common to all its channels; an output
              is made of `fan_in` tokens alike
    Weights   the sum over channels, which are alike; what is common to all of them meets the uniform share of the
              gradient only; so does the bias: `channels * G * uniform share`
    Backward  as Linear; the excess of the gradient counts without the share of the bias, squared

    The products of two outputs and their norms fluctuate as `PositionsToChannels` says.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=TRANSFORMED,
        directions=TRANSFORMED,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    by_position = False

    channels: int = 1

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        made = super(TokenLinear, replace(self, mean=0.0)).forward(x)
        if self.mean and self.mean**2 * self.fan_in > ONES * self.variance:
            made = made.note(Status.ASSUMED, "weights over tokens that have a mean are taken as centred")
        common = self._common(x) * _level(x) * self.fan_in * self.variance
        share = (common + self._bias) / _level(made)
        pair = x.fluctuation.pair * (1.0 - share) ** 2
        before = torch.as_tensor(x.common.mixed)
        fresh = torch.as_tensor((x.fluctuation.pair - 1.0) / self.channels).clamp_max(1.0)  # a squared cosine
        mixed = torch.where(before != 0.0, before, fresh)
        return replace(
            made,
            width=self.channels,
            fluctuation=replace(made.fluctuation, norm=2.0 * pair, pair=pair),
            common=replace(made.common, share=share, mixed=mixed),
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (made,) = super(TokenLinear, replace(self, mean=0.0)).backward(gradient, output, *inputs)
        own = 1.0 - self._bias / _level(output)
        through = ThroughActivation(gain_excess=gradient.through_activation.gain_excess * own**2)
        directions = Directions(uniform=gradient.directions.uniform)
        return (replace(made, directions=directions, through_activation=through),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight, *bias = super().parameters(gradient, x)
        uniform = gradient.directions.uniform
        seen = 1.0 - self._common(x) * (1.0 - uniform)
        factors = (self.channels * seen, *(self.channels * uniform for _ in bias))
        found = zip((weight, *bias), factors, strict=True)
        return [replace(item, grad_second_moment=item.grad_second_moment * factor) for item, factor in found]

    @staticmethod
    def _common(x: Signal) -> Tensor:
        """Share of the input that is the same in all channels: its mean, and what it has in common by itself."""
        return x.kernel.token_average(x.mean.square()) / _level(x).clamp_min(1e-300) + x.common.share

    @property
    def _bias(self) -> Tensor | float:
        return 0.0 if self.bias_variance is None else self.bias_variance


def _level(x: Signal) -> Tensor:
    return x.kernel.token_average(x.kernel.diagonal)
