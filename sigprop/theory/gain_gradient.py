"""The gradient of a gain: `E (sum_t x_t g_t)^2` of one channel, beyond independence of signal and gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.gradient_along_signal import applied
from sigprop.theory.gradient_through_activation import excess_of
from sigprop.theory.kernels import Kernel
from sigprop.theory.states import Gradient


def alignment_of(gradient: Gradient, kernel: Kernel) -> Tensor:
    """`M[s,t]`: the expected average over channels of the signal at `s` times the gradient at `t`."""
    slope = gradient.along_signal.slope
    assert isinstance(slope, Tensor)
    return applied(slope, kernel.values).T + gradient.along_signal.rest


def aligned_gain(gradient: Gradient, kernel: Kernel) -> Tensor | float:
    """`E (sum_t x_t g_t)^2` of one channel, the part that comes from the alignment of signal and gradient."""
    if not isinstance(gradient.along_signal.slope, Tensor):
        return 0.0
    alignment = alignment_of(gradient, kernel)
    return alignment.diagonal().sum() ** 2 + (alignment * alignment.T).sum()


def activation_gain(gradient: Gradient, unit: Kernel, mean: Tensor, gain: Tensor | float = 1.0) -> Tensor | float:
    """`E (sum_t x_t g_t)^2` of one channel, the part that comes from an activation of `y`; `gain` is `E gain^2`. With a
    gain of zero no function above knows of the signal."""
    if not float(torch.as_tensor(gain).abs().max()):
        return 0.0
    through = gradient.through_activation
    if not through.gradients:
        return through.gain_excess / gain
    made = unit.scale(gain)
    excess = made.like(excess_of(through.gradients, made, mean * made.per_token(gain) ** 0.5)).total()
    return (excess + through.gain_excess) / gain
