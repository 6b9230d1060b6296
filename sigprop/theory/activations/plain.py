"""Activations that are their formula alone: moments are integrated numerically."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.nn import functional as F

from sigprop.errors import require
from sigprop.theory.activations.base import ActivationFunction, register


class Plain(ActivationFunction):
    """A formula, its name, and where its derivative jumps."""

    def __init__(self, name: str, formula: Callable[[Tensor], Tensor], kinks: tuple[float, ...] = ()):
        self.name, self.formula, self.kinks = name, formula, kinks

    def __call__(self, x: Tensor) -> Tensor:
        return self.formula(x)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _plain(name: str, formula: Callable[[Tensor], Tensor], *known: Hashable, kinks: tuple[float, ...] = ()) -> None:
    register(name, *known)(lambda: Plain(name, formula, kinks))


_plain("sigmoid", torch.sigmoid, torch.sigmoid, F.sigmoid)
_plain("silu", F.silu, F.silu)
_plain("softplus", _softplus, F.softplus)
_plain("tanh", torch.tanh, torch.tanh, F.tanh)
_plain("mish", lambda x: x * torch.tanh(_softplus(x)), F.mish)
_plain("selu", torch.selu, torch.selu, F.selu, kinks=(0.0,))
_plain("hard_swish", lambda x: x * (x + 3).clamp(0, 6) / 6, F.hardswish, kinks=(-3.0, 3.0))
_plain("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))


@register("elu", F.elu)
def elu(alpha: float = 1.0) -> ActivationFunction:
    """f(x) = x for x > 0, alpha (e^x - 1) for x < 0."""
    require(math.isfinite(alpha), "alpha", alpha, "a finite number")
    name, kinks = ("elu", ()) if alpha == 1 else (f"elu({alpha:g})", (0.0,))
    return Plain(name, lambda x: F.elu(x, alpha=alpha), kinks)
