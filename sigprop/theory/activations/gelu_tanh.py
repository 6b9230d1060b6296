"""GELU in the tanh approximation."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("gelu_tanh")
class GeluTanh(ActivationFunction):
    """f(x) = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""

    name = "gelu_tanh"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")
