"""Mish."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("mish", torch.nn.functional.mish)
class Mish(ActivationFunction):
    """f(x) = x tanh(softplus(x))."""

    name = "mish"

    def __call__(self, x: Tensor) -> Tensor:
        return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
