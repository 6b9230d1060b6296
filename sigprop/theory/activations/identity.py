"""The identity."""

from __future__ import annotations

from torch import Tensor

from sigprop.theory.activations.registry import register
from sigprop.theory.activations.two_slope import TwoSlope


@register("identity")
class Identity(TwoSlope):
    """f(x) = x."""

    def __init__(self):
        super().__init__(1.0, 1.0)
        self.name = "identity"
        self.kinks = ()

    def __call__(self, x: Tensor) -> Tensor:
        return x
