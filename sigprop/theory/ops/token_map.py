"""A fixed linear map over positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import applied
from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.ops.linear import ONES, Linear
from sigprop.theory.ops.positions_to_channels import ChannelsToPositions, PositionsToChannels
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    KEPT,
    AlongSignal,
    Directions,
    Gradient,
    Signal,
    Status,
    ThroughActivation,
)


@dataclass(frozen=True, eq=False)
class TokenMap(Op):
    """`y = M x` over positions, `M` a fixed matrix: pooling and interpolation.

    Forward   `K_y = M K_x M^T`
    Backward  `G_x = M^T G_y M`, the slope `M^T B M` likewise; of `rest` only `a_y = M a_x` is known, so that it ends

    The squared norms of tokens with cosine `r` have `r^2` of their fluctuation in common. Of a sum with the weights `w`
    (shares of its energy) that part remains: `norm` is `2 + (v - 2) sum w w' r^2`. A gradient across `y_t` is across
    `x_s` by their squared cosine.

    Exact; of exchangeable tokens the average token and pair of the output are followed, exact for a mean over all.
    """

    carries = ALL_TRANSFORMED.but(common=KEPT)

    matrix: Tensor

    @staticmethod
    def mean(tokens: int) -> TokenMap:
        """The mean over so many tokens: one token."""
        return TokenMap(torch.full((1, tokens), 1.0 / tokens, dtype=torch.float64))

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, norm = x.kernel.mapped(self.matrix), x.fluctuation.norm
        fluctuation = replace(x.fluctuation, norm=2.0 + (norm - 2.0) * self._squared_cosine(x.covariance))
        return self.carries.signal(x, kernel, self._mean(x), fluctuation=fluctuation)

    def _mean(self, x: Signal) -> Tensor:
        if isinstance(x.kernel, Exchangeable):
            return x.mean * float(self.matrix.sum(1).mean())
        return x.mean @ self.matrix.to(x.mean).T

    def _squared_cosine(self, kernel: Kernel) -> Tensor:
        weights, cosine = (
            self.matrix.square().to(kernel.values) * _written_out(kernel)[..., None, :],
            kernel.normalized(),
        )
        shared = (cosine.like(cosine.values.square()).met_by(weights) * weights).sum(-1)
        return (shared / weights.sum(-1).square().clamp_min(1e-300)).mean(-1)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        slope = gradient.along_signal.slope
        along = AlongSignal(self.matrix.T @ applied(slope, self.matrix) if isinstance(slope, Tensor) else 0.0)
        kernel = gradient.kernel.mapped(self.matrix.T)
        through = gradient.through_activation.collected(output)
        parts = {"directions": self._directions(gradient, output, inputs[0]), "along_signal": along}
        return (self.carries.gradient(gradient, kernel, through_activation=through, **parts),)

    def _directions(self, gradient: Gradient, output: Signal, x: Signal) -> Directions:
        """Cosines of the pairs that the map joins, by the energy that passes between them."""
        received, given, sent = (_written_out(item) for item in (output.kernel, x.kernel, gradient.kernel))
        cosines = x.kernel.met_by(self.matrix).square() / (received[..., None] * given[..., None, :]).clamp_min(1e-300)
        passed = self.matrix.square().to(sent) * sent[..., None]
        part = (passed * cosines).sum((-1, -2)) / passed.sum((-1, -2)).clamp_min(1e-300)
        return gradient.directions.at_part(part)


def _written_out(kernel: Kernel) -> Tensor:
    """The same-token values with an axis for tokens: of length one where they are exchangeable."""
    return kernel.diagonal[..., None] if isinstance(kernel, Exchangeable) else kernel.diagonal


@dataclass(frozen=True)
class TokenLinear(Linear):
    """A linear map over tokens, the same for all `channels`: what is uniform over channels stays so.

    It stands between `PositionsToChannels`, which makes inputs of the tokens, and `ChannelsToPositions`, which makes
    tokens of its outputs: together `y_s = sum_t W_st x_t + b_s`, in expectation over `W`. One draw of `W`, which does
    not average out in one network, is `DrawnTokenLinear`.

    Forward   the mean of the inputs and the bias give every output token a part common to all its channels; an output
              is made of `fan_in` exchangeable tokens
    Weights   the sum over exchangeable channels; what is common to all of them meets the uniform share of the
              gradient only; so does the bias: `channels * G * uniform share`
    Backward  as Linear; the excess of the gradient counts without the share of the bias, squared

    The products of two outputs and their norms fluctuate as `PositionsToChannels` says.
    """

    carries = ALL_TRANSFORMED

    by_position = False

    channels: int = 1

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        made = super(TokenLinear, replace(self, mean=0.0)).forward(x)
        if self.mean and self.mean**2 * self.fan_in > ONES * self.variance:
            made = made.note(Status.ASSUMED, "weights over tokens that have a mean are taken as centred")
        common = self._common(x) * x.kernel.level * self.fan_in * self.variance
        share = (common + self._bias) / made.kernel.level
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
        own = 1.0 - self._bias / output.kernel.level
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
        return x.kernel.token_average(x.mean.square()) / x.kernel.level.clamp_min(1e-300) + x.common.share

    @property
    def _bias(self) -> Tensor | float:
        return 0.0 if self.bias_variance is None else self.bias_variance


@dataclass(frozen=True, eq=False)
class DrawnTokenLinear(TokenMap):
    """`y = W x + b` over tokens, the same for every channel, with the numbers of one `W` and `b`: a `TokenMap`.

    `TokenLinear` is its average over `W`. But `W` is one matrix for all channels, so that in one network its
    fluctuations do not average out: outputs are correlated with random signs, their strengths differ, and a norm then
    multiplies the gradient by `E 1/s^2 > 1/E s^2`.

    Forward   `K_y = W K_x W^T` about the means, mean `W m + b`
    Backward  as `TokenMap`: `G_x = W^T G_y W`
    Weights   those of `TokenLinear`, with the gradient and the signal averaged over tokens
    """

    carries = TokenMap.carries

    bias: Tensor
    law: TokenLinear

    @classmethod
    def draw(cls, law: TokenLinear, seed: int) -> DrawnTokenLinear:
        """`W` and `b` of a seed."""
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(law.fan_out, law.fan_in, generator=generator, dtype=torch.float64)
        bias = torch.randn(law.fan_out, generator=generator, dtype=torch.float64)
        first, second = (torch.as_tensor(v or 0.0, dtype=torch.float64) for v in (law.variance, law.bias_variance))
        return cls(first.sqrt() * weight, second.sqrt() * bias, law)

    def forward(self, *inputs: Signal) -> Signal:
        made = super().forward(*inputs)
        mean = made.mean + self.bias
        values = made.covariance.values + mean[..., :, None] * mean[..., None, :]
        return replace(made, kernel=Dense(values), mean=mean).note(Status.SAMPLED, "map over tokens sampled")

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        """Averaged over the entries of `W`, as `TokenLinear` has them."""
        taken = PositionsToChannels(torch.arange(self.law.fan_in)[None], self.law.fan_in, mixes=True).forward(*inputs)
        made = self.law.forward(taken)
        apart = ChannelsToPositions(self.law.fan_out)
        (above,) = apart.backward(gradient, apart.forward(made), made)
        return self.law.parameters(above, taken)
