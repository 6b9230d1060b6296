"""One draw of a linear map over tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.ops.channels_to_positions import ChannelsToPositions
from sigprop.theory.ops.positions_to_channels import PositionsToChannels
from sigprop.theory.ops.token_linear import TokenLinear
from sigprop.theory.ops.token_map import TokenMap
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status


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
        return replace(made, kernel=Dense(values), mean=mean).note(Status.SAMPLED, "map over tokens drawn")

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        """Averaged over the entries of `W`, as `TokenLinear` has them."""
        taken = PositionsToChannels(torch.arange(self.law.fan_in)[None], self.law.fan_in, mixes=True).forward(*inputs)
        made = self.law.forward(taken)
        (above,) = ChannelsToPositions(self.law.fan_out).backward(gradient, made, made)
        return self.law.parameters(above, taken)
