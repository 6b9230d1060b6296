"""ReLU."""

from __future__ import annotations

import torch

from sigprop.theory.activations.registry import register
from sigprop.theory.activations.two_slope import TwoSlope


@register("relu", torch.relu, torch.relu_, torch.nn.functional.relu)
class Relu(TwoSlope):
    """f(x) = max(x, 0)."""

    def __init__(self):
        super().__init__(1.0, 0.0)
        self.name = "relu"
