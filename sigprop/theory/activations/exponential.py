"""The exponential."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction, Number
from sigprop.theory.activations.gaussian import as_double
from sigprop.theory.activations.registry import register


@register("exp", torch.exp)
class Exponential(ActivationFunction):
    """f(x) = f'(x) = e^x, with log-normal moments: E e^(x + y) = exp(m_x + m_y + (v_x + v_y) / 2 + c)."""

    name = "exp"
    status = "exact"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.exp(mean + variance / 2)

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        variance, mean = as_double(variance, mean)
        return torch.exp(2 * mean + 2 * variance)

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        return torch.exp(mx + my + (vx + vy) / 2 + c)

    derivative = __call__
    derivative_mean = mean
    derivative_second_moment = second_moment
    _derivative_cross_moment = _cross_moment
