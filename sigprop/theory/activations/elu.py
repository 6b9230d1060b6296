"""ELU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("elu", torch.nn.functional.elu)
class Elu(ActivationFunction):
    """f(x) = x for x > 0, alpha (e^x - 1) for x < 0."""

    def __init__(self, alpha: float = 1.0):
        require(math.isfinite(alpha), "alpha", alpha, "a finite number")
        self.alpha = alpha
        self.kinks = () if alpha == 1 else (0.0,)
        self.name = "elu" if alpha == 1 else f"elu({alpha:g})"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.elu(x, alpha=self.alpha)
