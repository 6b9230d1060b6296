"""Convolutions of each channel by itself, under an activation.

Their outputs are sums of few products, one channel of the input each: the slope of a function of such a sum and each
factor depend on each other, not by `1/width` but in full. Where the gradients of positions have much in common, as
under a pooled loss, that makes gradients of weights which no rule follows: four times smaller than independence says
for the convolution itself, twice as large below it.
"""

from __future__ import annotations

from sigprop.theory import Gradient, Signal
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.convolution import Convolution
from sigprop.theory.parts import GIVEN

FEW = 32
"""Products in a sum, from which on none of them counts much."""
BENT = 0.05
"""Variance of a slope over its mean square, from which on it is no constant."""
IN_STEP = 0.2
"""Average cosine of the gradients of two positions, from which on they have much in common."""
REASON = "slopes of a function of sums of few products depend on each factor"


def is_bent_sum(op: Op, gradient: Gradient, made: Signal, *inputs: Signal) -> bool:
    """Whether an op is a sum of few products of random numbers that a function with varying slopes follows."""
    through = gradient.through_activation
    if not isinstance(op, Convolution) or op.groups == 1 or op.fan_in > FEW:
        return False
    if inputs[0].fluctuation is GIVEN or abs(float(gradient.kernel.cosine_average())) < IN_STEP:
        return False
    for item in through.gradients:
        square = float(item.passed.diagonal.sum() / item.kernel.diagonal.sum().clamp_min(1e-300))
        mean = float(item.function.derivative_mean(made.covariance.diagonal, made.mean).square().mean())
        if mean < (1.0 - BENT) * square:
            return True
    return bool(through.gain_excess)
