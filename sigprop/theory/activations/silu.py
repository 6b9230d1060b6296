"""SiLU, also called swish."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("silu", torch.nn.functional.silu)
class Silu(ActivationFunction):
    """f(x) = x sigmoid(x)."""

    name = "silu"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)
