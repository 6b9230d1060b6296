"""Convolution in any number of dimensions: strides, padding, dilation and groups, as windows of positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.ops.scatter import scattered
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class Convolution(Op):
    """`y_p = sum_o W_o x_index(o,p) + b`; index -1 is padding.

    Forward   `K_y[p,p'] = fan_in * variance * average over o of K_x[index(o,p), index(o,p')]`
    Backward  `G_x += fan_out * variance * G_y` on the pixels each offset sees
    Weights   per entry `sum_pp' G_y K_x` at its offset, averaged over offsets
    """

    index: Tensor
    channels_in: int
    channels_out: int
    variance: float
    bias_second_moment: float | None
    width: int

    def _seen(self, values: Tensor, offset: Tensor) -> Tensor:
        live = (offset >= 0).to(values.dtype)
        safe = offset.clamp_min(0)
        return values[safe][:, safe] * live[:, None] * live

    def _average(self, values: Tensor) -> Tensor:
        total = torch.zeros(self.index.shape[1], self.index.shape[1], dtype=values.dtype)
        for offset in self.index:
            total += self._seen(values, offset)
        return total

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        values = self._average(x.kernel.values) * (self.channels_in * self.variance)
        if self.bias_second_moment is not None:
            values = values + self.bias_second_moment
        mean = torch.zeros(len(values), dtype=values.dtype)
        return Signal(Dense(values), mean, self.width, evidence=x.evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        size = len(inputs[0].mean)
        total = torch.zeros(size, size, dtype=gradient.kernel.values.dtype)
        for offset in self.index:
            live = (offset >= 0).nonzero().flatten()
            total += scattered(gradient.kernel.values[live][:, live], offset[live], size)
        return (Gradient(Dense(total * (self.channels_out * self.variance)), evidence=gradient.evidence),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight = (gradient.kernel.values * self._average(x.kernel.values)).sum() / len(self.index)
        shape = (self.channels_out, self.channels_in, len(self.index))
        found = [ParameterState("weight", shape, "hidden", self.variance, weight)]
        if self.bias_second_moment is not None:
            found.append(ParameterState("bias", (self.width,), "bias", 0.0, gradient.kernel.total()))
        return found
