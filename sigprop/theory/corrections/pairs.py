"""How much the products of two tokens fluctuate for being averages over finitely many channels.

Tokens of one channel have a part `c` in common and differ by the rest `u`. With `V(c)` the variance of what a function
makes of `c + u`, the product of two tokens about their average has variance `E V(c)^2` over channels, beside the mean
square `E V(c)` of a token. The ratio `E V^2 / (E V)^2` is the fluctuation of fresh channels: 1 where nothing is in
common or the function is linear. Exact for Gaussian channels and many tokens that are alike.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from sigprop.theory.activations.quadrature import Function

ORDER = 24
SMALLEST = 1e-6


@cache
def _nodes() -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(ORDER)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def fresh_fluctuation(function: Function, common: Tensor, rest: Tensor, mean: Tensor) -> Tensor:
    """`E V^2 / (E V)^2` of a function of Gaussian channels with variances `common` and `rest`."""
    nodes, weights = _nodes()
    rest = rest.clamp_min(SMALLEST * (common + rest))
    shared = mean[..., None] + common.clamp_min(0.0).sqrt()[..., None] * nodes
    values = function(shared[..., None] + rest.sqrt()[..., None, None] * nodes)
    centred = values - (values * weights).sum(-1, keepdim=True)
    spread = (centred.square() * weights).sum(-1)
    first = (spread * weights).sum(-1)
    return (spread.square() * weights).sum(-1) / first.clamp_min(torch.finfo(first.dtype).tiny).square()
