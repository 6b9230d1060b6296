"""GroupNorm: statistics over some channels and all pixels of an image."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.gain_gradient import gated_gain
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status


@dataclass(frozen=True, eq=False)
class GroupNorm(Op):
    """`y = gain * (x - mean) / std + bias`, statistics over channels and pixels; `image` numbers the positions' images.

    Forward   `K_y = (K_x - m m' ...) / (s s')`, `m` and `s^2` the mean and the variance over an image's pixels
    Backward  `G_x = G_y / (s s')`: the two directions removed are few against channels times pixels

    For groups of many channels; few channels are sampled.
    """

    image: Tensor
    gain_second_moment: float
    bias_second_moment: float
    epsilon: float
    affine: bool

    def _unit(self, x: Signal) -> tuple[Tensor, Tensor, Tensor]:
        """Kernel and mean before gain and bias, and the scale of each position."""
        count = int(self.image.max()) + 1
        size = torch.bincount(self.image, minlength=count).to(x.mean)

        def average(values: Tensor) -> Tensor:
            return (torch.zeros(count, dtype=values.dtype).index_add(0, self.image, values) / size)[self.image]

        shift = average(x.mean)
        centred = x.kernel.values - x.mean[:, None] * shift - shift[:, None] * (x.mean - shift)
        scale = (average(centred.diagonal()) + self.epsilon).sqrt()
        return centred / (scale[:, None] * scale), (x.mean - shift) / scale, scale

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, mean, _ = self._unit(x)
        values = kernel * self.gain_second_moment + self.bias_second_moment
        return replace(x, kernel=Dense(values), mean=mean).note(Status.ASYMPTOTIC, "statistics of large groups")

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        _, _, scale = self._unit(inputs[0])
        values = gradient.kernel.values * (self.gain_second_moment / (scale[:, None] * scale))
        return (Gradient(Dense(values), evidence=gradient.evidence),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        if not self.affine:
            return []
        (x,) = inputs
        values, mean, _ = self._unit(x)
        kernel = Dense(values)
        gain = gradient.kernel.contract(kernel) + gated_gain(gradient, kernel, mean, self.gain_second_moment)
        return [
            ParameterState("weight", (x.width,), "norm gain", 0.0, gain),
            ParameterState("bias", (x.width,), "bias", 0.0, gradient.kernel.total()),
        ]
