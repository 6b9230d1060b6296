"""Normalization over all channels and pixels of one image (GroupNorm with one group)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status


@dataclass(frozen=True)
class ImageNorm(Op):
    """`y = (x - mean) / std`, statistics over channels and pixels together; pixels are the tokens.

    Forward   `K_y = (K_x - m^2) / v`, `v` the average over pixels of the same-pixel value; mean `m_t - m` over root v
    Backward  `G_x = G_y / v` (the removed directions are 2 out of channels times pixels)
    """

    epsilon: float = 1e-5

    def _level(self, x: Signal) -> tuple[Kernel, Tensor, Tensor]:
        overall = x.kernel.token_average(x.mean)
        shift = torch.zeros_like(x.mean) + x.kernel.per_token(overall)
        kernel = x.kernel - x.kernel.outer(x.mean, shift) - x.kernel.outer(shift, x.mean - shift)
        return kernel, x.mean - shift, kernel.token_average(kernel.diagonal) + self.epsilon

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, mean, level = self._level(x)
        out = Signal(kernel.scale(1.0 / level), mean / kernel.per_token(level.sqrt()), x.width, evidence=x.evidence)
        return out.note(Status.ASYMPTOTIC, "image statistics at large size")

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        _, _, level = self._level(inputs[0])
        return (Gradient(gradient.kernel.scale(1.0 / level), evidence=gradient.evidence),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        kernel, _, level = self._level(x)
        gain = gradient.kernel.contract(kernel.scale(1.0 / level))
        return [
            ParameterState("weight", (x.width,), "norm gain", 0.0, gain),
            ParameterState("bias", (x.width,), "bias", torch.zeros(()), gradient.kernel.total()),
        ]
