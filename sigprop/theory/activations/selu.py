"""Self-normalizing ELU."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("selu", torch.selu, torch.nn.functional.selu)
class Selu(ActivationFunction):
    """f(x) = 1.0507 (x for x > 0, 1.6733 (e^x - 1) for x < 0)."""

    name = "selu"
    kinks = (0.0,)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.selu(x)
