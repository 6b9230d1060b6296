"""One row per registered activation: the function and its derivative in numpy, written independently."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import erf, expit, ndtr

Array = np.ndarray


@dataclass
class Case:
    f: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    parameters: dict[str, Any] = field(default_factory=dict)
    kinks: tuple[float, ...] = ()
    largest_variance: float = 1e3
    growth: int = 1  # f grows like |x|^growth


def _density(x: Array) -> Array:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish_slope(x: Array) -> Array:
    t = np.tanh(_softplus(x))
    return t + x * (1 - t * t) * expit(x)


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _gelu_tanh_slope(x: Array) -> Array:
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _elu_slope(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0)))


_ALPHA, _SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

CASES: dict[str, Case] = {
    "identity": Case(lambda x: x, np.ones_like),
    "relu": Case(lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0), kinks=(0.0,)),
    "leaky_relu": Case(
        lambda x: np.where(x > 0, x, 0.2 * x), lambda x: np.where(x > 0, 1, 0.2), {"slope": 0.2}, (0.0,)
    ),
    "two_slope": Case(
        lambda x: np.where(x > 0, 1.5 * x, -0.7 * x),
        lambda x: np.where(x > 0, 1.5, -0.7),
        {"positive": 1.5, "negative": -0.7},
        (0.0,),
    ),
    "relu_squared": Case(lambda x: np.maximum(x, 0) ** 2, lambda x: 2 * np.maximum(x, 0), kinks=(0.0,), growth=2),
    "gelu": Case(lambda x: x * ndtr(x), lambda x: ndtr(x) + x * _density(x)),
    "gelu_tanh": Case(_gelu_tanh, _gelu_tanh_slope),
    "erf": Case(erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x), growth=0),
    "tanh": Case(np.tanh, lambda x: 1 - np.tanh(x) ** 2, growth=0),
    "sigmoid": Case(expit, lambda x: expit(x) * expit(-x), growth=0),
    "silu": Case(lambda x: x * expit(x), lambda x: expit(x) + x * expit(x) * expit(-x)),
    "softplus": Case(_softplus, expit),
    "elu": Case(_elu, _elu_slope, kinks=(0.0,)),
    "selu": Case(lambda x: _SCALE * _elu(x, _ALPHA), lambda x: _SCALE * _elu_slope(x, _ALPHA), kinks=(0.0,)),
    "mish": Case(lambda x: x * np.tanh(_softplus(x)), _mish_slope),
    "sin": Case(np.sin, np.cos, largest_variance=20.0, growth=0),
    "exp": Case(np.exp, np.exp, largest_variance=0.5, growth=99),
    "hard_sigmoid": Case(
        lambda x: np.clip(x + 3, 0, 6) / 6, lambda x: (np.abs(x) < 3) / 6.0, kinks=(-3.0, 3.0), growth=0
    ),
    "hard_swish": Case(
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        lambda x: np.where(x < -3, 0.0, np.where(x > 3, 1.0, (2 * x + 3) / 6)),
        kinks=(-3.0, 3.0),
    ),
}
