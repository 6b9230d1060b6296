"""Activations that are their formula alone: moments are integrated numerically."""

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


# -- Self-normalizing ELU


@register("selu", torch.selu, torch.nn.functional.selu)
class Selu(ActivationFunction):
    """f(x) = 1.0507 (x for x > 0, 1.6733 (e^x - 1) for x < 0)."""

    name = "selu"
    kinks = (0.0,)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.selu(x)


# -- Logistic sigmoid


@register("sigmoid", torch.sigmoid, torch.nn.functional.sigmoid)
class Sigmoid(ActivationFunction):
    """f(x) = 1 / (1 + e^-x)."""

    name = "sigmoid"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


# -- SiLU, also called swish


@register("silu", torch.nn.functional.silu)
class Silu(ActivationFunction):
    """f(x) = x sigmoid(x)."""

    name = "silu"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)


# -- Softplus


@register("softplus", torch.nn.functional.softplus)
class Softplus(ActivationFunction):
    """f(x) = log(1 + e^x), with torch's default sharpness 1."""

    name = "softplus"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))


# -- Hyperbolic tangent


@register("tanh", torch.tanh, torch.nn.functional.tanh)
class Tanh(ActivationFunction):
    """f(x) = tanh x."""

    name = "tanh"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


# -- Mish


@register("mish", torch.nn.functional.mish)
class Mish(ActivationFunction):
    """f(x) = x tanh(softplus(x))."""

    name = "mish"

    def __call__(self, x: Tensor) -> Tensor:
        return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))


# -- Hard swish


@register("hard_swish", torch.nn.functional.hardswish)
class HardSwish(ActivationFunction):
    """f(x) = x min(max(x + 3, 0), 6) / 6."""

    name = "hard_swish"
    kinks = (-3.0, 3.0)

    def __call__(self, x: Tensor) -> Tensor:
        return x * (x + 3).clamp(0, 6) / 6


# -- GELU in the tanh approximation


@register("gelu_tanh")
class GeluTanh(ActivationFunction):
    """f(x) = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""

    name = "gelu_tanh"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")
