"""Softmax over scores that are Gaussian: how concentrated the weights are."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from scipy.special import roots_genlaguerre, roots_hermitenorm
from torch import Tensor

# Regression on the exact integral: worst relative error 1.6 % (s <= 1), 3 % (s <= 2), 6.8 % (s <= 10), n = 2..4096.
_FIT = (1.0963, 0.6826, 0.6351, 0.2124, 0.9654)
_STEEPNESS = 9.0
"""Fitted to the exact integral of `passed`: worst error 4.2 % (s <= 1), 7.2 % (s <= 2), 16 % (s <= 4), n = 2..4096."""
_NODES = 5
_NORMAL_LIMIT = 200.0


def overlap(count: Tensor, variance: Tensor) -> Tensor:
    """`Y(n, s) = E sum_k p_k^2` of a softmax over `n` independent `N(0, s)` scores, by a fitted closed form.

    `Y = e^t / (n - 1 + e^t)` with a saturating `t(s, n)`; exact limits `1/n` (s -> 0) and 1 (n = 1 or s -> inf).
    """
    logn = count.clamp_min(2.0).log()
    knee, power = _FIT[0] + _FIT[1] * logn, _FIT[2] + _FIT[3] * logn
    safe = variance.clamp_min(1e-12)
    exponent = (safe / (1.0 + (safe / knee) ** power) ** (_FIT[4] / power)).exp()
    return torch.where(count <= 1.0, torch.ones_like(exponent), exponent / (count.clamp_min(1.0) - 1.0 + exponent))


def mean_overlap(count: Tensor, variance: Tensor, degrees: float) -> Tensor:
    """`overlap` averaged over rows whose score variance fluctuates like `s * chi2_D / D` (finite head width)."""
    factors, weights = _chi2_nodes(degrees)
    return overlap(count[..., None], variance[..., None] * factors.to(variance.device)) @ weights.to(variance.device)


@lru_cache(maxsize=256)
def _chi2_nodes(degrees: float) -> tuple[Tensor, Tensor]:
    """Gauss nodes of `chi2_D / D`: Laguerre, or Hermite of its normal limit at many degrees of freedom."""
    if degrees <= _NORMAL_LIMIT:
        x, w = roots_genlaguerre(_NODES, degrees / 2 - 1)
        x = 2 * x / degrees
    else:
        x, w = roots_hermitenorm(_NODES)
        x = 1 + math.sqrt(2 / degrees) * x
    return torch.tensor(x, dtype=torch.float64), torch.tensor(w / w.sum(), dtype=torch.float64)


def passed(count: Tensor, overlap: Tensor) -> Tensor:
    """What the Jacobian of a softmax lets through of independent gradients, `E sum_k p_k^2 (1 - 2 p_k + sum p^2) / Y`.

    `(1 - Y) / (1 - Y + Y sqrt(1 + 9 log nY))`, a fit with the exact limits `1 - 1/n` (s -> 0) and 0 (Y -> 1).
    """
    odds = overlap * (1.0 + _STEEPNESS * (count * overlap).clamp_min(1.0).log()).sqrt()
    return (1.0 - overlap) / (1.0 - overlap + odds)


def gradient_factor(count: Tensor, variance: Tensor, upstream_correlation: Tensor | float = 0.0) -> Tensor:
    """Mean square of the gradient at the scores per mean square of the gradient at the weights.

    `(1 - rho) Y/n` times what is `passed` (dslm B.7, corrected), `rho` the correlation of the upstream gradient along
    the softmax axis: a common gradient is annihilated.
    """
    weight = overlap(count, variance)
    return (1.0 - upstream_correlation) * weight / count * passed(count, weight)
