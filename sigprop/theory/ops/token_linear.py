"""A linear map over tokens, the same for every channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.ops.base import ParameterState
from sigprop.theory.ops.linear import Linear
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

    channels: int = 1

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        made = super().forward(x)
        common = self._common(x) * x.kernel.diagonal.mean() * self.fan_in * self.variance
        share = (common + (self.bias_variance or 0.0)) / made.kernel.diagonal.mean()
        pairs = x.pair_fluctuation * (1.0 - share) ** 2
        mixed = x.mixed or (x.pair_fluctuation - 1.0) / self.channels
        return replace(made, width=self.channels, common_share=share, mixed=mixed, pair_fluctuation=pairs,
                       norm_fluctuation=2.0 * pairs)  # fmt: skip

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (made,) = super().backward(gradient, output, *inputs)
        own = 1.0 - (self.bias_variance or 0.0) / output.kernel.diagonal.mean()
        return (replace(made, uniform_share=gradient.uniform_share, excess=gradient.excess * own**2),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight, *bias = super().parameters(gradient, x)
        uniform = gradient.uniform_share
        seen = 1.0 - self._common(x) * (1.0 - uniform)
        factors = (seen, *(uniform for _ in bias))
        found = zip((weight, *bias), factors, strict=True)
        return [replace(item, grad_second_moment=item.grad_second_moment * factor) for item, factor in found]

    @staticmethod
    def _common(x: Signal) -> Tensor:
        """Share of the input that is the same in all channels: its mean, and what it has in common by itself."""
        return x.mean.square().mean() / x.kernel.diagonal.mean().clamp_min(1e-300) + x.common_share
