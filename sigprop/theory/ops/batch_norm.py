"""BatchNorm in training mode, large batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.ops.normalization import gated_gain
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status


@dataclass(frozen=True)
class BatchNorm(Op):
    """Each channel is centred and scaled by its statistics over the batch; the kernel's tokens are the samples.

    Forward   `K_y = centred(K_x) / v`, `v` the average same-sample value of the centred kernel; mean 0
    Backward  `G_x = centred(G_y) / v`: the part common to the batch is removed
              (the part along the signal is of order 1/batch and dropped)

    Gain      `sum_tt' G_y K_y`, and what a following activation adds (see `Gate`)

    Large batch. With ReLU this gives `pi/(pi-1)` per stage (apjn eq. 26 and its corrected single-stage form).
    """

    gain_second_moment: Tensor | float = 1.0
    bias_variance: Tensor | float = 0.0
    epsilon: float = 1e-5

    def _level(self, x: Signal) -> tuple[Kernel, Tensor]:
        centred = x.kernel.centred()
        return centred, centred.token_average(centred.diagonal) + self.epsilon

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        centred, level = self._level(x)
        kernel = centred.scale(self.gain_second_moment / level)
        kernel = kernel.like(kernel.values + kernel.spread(self.bias_variance))
        out = Signal(kernel, torch.zeros_like(kernel.diagonal), x.width, evidence=x.evidence)
        return out.note(Status.ASYMPTOTIC, "BatchNorm at large batch")

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        _, level = self._level(inputs[0])
        kernel = gradient.kernel.centred().scale(self.gain_second_moment / level)
        return (Gradient(kernel, evidence=gradient.evidence),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        centred, level = self._level(x)
        unit = centred.scale(1.0 / level)
        gain = gradient.kernel.contract(unit) + gated_gain(
            gradient, unit, torch.zeros_like(unit.diagonal), self.gain_second_moment
        )
        return [
            ParameterState("weight", (x.width,), "norm gain", 0.0, gain),
            ParameterState("bias", (x.width,), "bias", self.bias_variance, gradient.kernel.total()),
        ]
