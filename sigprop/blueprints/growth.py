"""The growth class of a sequence over depth: constant, linear, a power, or exponential."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.errors import require

CONSTANT_RANGE = 3.0
LINEAR_ERROR = 0.1


@dataclass(frozen=True)
class Growth:
    """`kind` with its number: `rate` per layer (exponential), `exponent` (power), and the total factor."""

    kind: str
    number: float
    total: float
    residual: float

    def __str__(self) -> str:
        words = {
            "constant": f"constant (x{self.total:.3g} in all)",
            "linear": f"linear, {self.number:+.3g} per layer",
            "power": f"hyperbolic, depth^{self.number:+.3g}",
            "exponential": f"exponential, x{math.exp(self.number):.4g} per layer",
        }
        return words[self.kind]


def growth_class(values: Sequence[float], depths: Sequence[float] | None = None) -> Growth:
    """The simplest law that fits positive values over depths (layers 1, 2, ... unless given).

    Constant when the extreme values are within a factor of 3. Otherwise linear, `y = a + b n`, if that fits within
    10 %; otherwise the better of a power, `log y = a + c log(n + n0)` (the hyperbolic law of Pre-LN gradients), and an
    exponential, `log y = a + c n`. Errors are root mean squares of `log y`.
    """
    y = torch.as_tensor(values, dtype=torch.float64)
    require(y.ndim == 1 and len(y) >= 4, "values", tuple(y.shape), "a sequence of at least 4 depths")
    require(bool((y > 0).all() and torch.isfinite(y).all()), "values", values, "finite positive numbers")
    total = float(y[-1] / y[0])
    if float(y.max() / y.min()) <= CONSTANT_RANGE:
        return Growth("constant", 0.0, total, float(y.log().std()))
    n = torch.as_tensor(range(1, len(y) + 1) if depths is None else depths, dtype=torch.float64)
    require(n.shape == y.shape, "depths", tuple(n.shape), f"as many as values, {len(y)}")
    line = _linear(n, y)
    kind, number, residual = line if line[2] <= LINEAR_ERROR else min(_power(n, y), _exponential(n, y), key=_error)
    return Growth(kind, number, total, residual)


def _line(x: Tensor, y: Tensor) -> tuple[float, float, Tensor]:
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    intercept = float(y.mean()) - slope * float(x.mean())
    return slope, intercept, intercept + slope * x


def _exponential(n: Tensor, y: Tensor) -> tuple[str, float, float]:
    slope, _, fitted = _line(n, y.log())
    return "exponential", slope, _rms(y.log() - fitted)


def _power(n: Tensor, y: Tensor) -> tuple[str, float, float]:
    trials = []
    for offset in torch.linspace(0.0, 20.0, 81).tolist():
        slope, _, fitted = _line((n + offset).log(), y.log())
        trials.append((_rms(y.log() - fitted), slope))
    residual, slope = min(trials)
    return "power", slope, residual


def _linear(n: Tensor, y: Tensor) -> tuple[str, float, float]:
    slope, _, fitted = _line(n, y)
    if bool((fitted <= 0).any()):
        return "linear", slope, math.inf
    return "linear", slope, _rms((y / fitted).log())


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _error(fit: tuple[str, float, float]) -> float:
    return fit[2]
