"""Leaky ReLU."""

from __future__ import annotations

import torch

from sigprop.theory.activations.registry import register
from sigprop.theory.activations.two_slope import TwoSlope


@register("leaky_relu", torch.nn.functional.leaky_relu)
class LeakyRelu(TwoSlope):
    """f(x) = x for x > 0, slope x for x < 0."""

    def __init__(self, slope: float = 0.01):
        super().__init__(1.0, slope)
        self.name = f"leaky_relu({slope:g})"
