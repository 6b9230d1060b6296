"""Hyperbolic tangent."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("tanh", torch.tanh, torch.nn.functional.tanh)
class Tanh(ActivationFunction):
    """f(x) = tanh x."""

    name = "tanh"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x)
