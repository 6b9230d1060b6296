"""Hard swish."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction
from sigprop.theory.activations.registry import register


@register("hard_swish", torch.nn.functional.hardswish)
class HardSwish(ActivationFunction):
    """f(x) = x min(max(x + 3, 0), 6) / 6."""

    name = "hard_swish"
    kinks = (-3.0, 3.0)

    def __call__(self, x: Tensor) -> Tensor:
        return x * (x + 3).clamp(0, 6) / 6
