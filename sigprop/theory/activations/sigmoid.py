"""Logistic sigmoid."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("sigmoid", torch.sigmoid, torch.nn.functional.sigmoid)
class Sigmoid(ActivationFunction):
    """f(x) = 1 / (1 + e^-x)."""

    name = "sigmoid"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)
