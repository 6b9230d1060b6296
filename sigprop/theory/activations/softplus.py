"""Softplus."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("softplus", torch.nn.functional.softplus)
class Softplus(ActivationFunction):
    """f(x) = log(1 + e^x), with torch's default sharpness 1."""

    name = "softplus"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))
