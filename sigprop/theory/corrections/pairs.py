"""How much the products of two tokens fluctuate for being averages over finitely many channels.

Tokens of one channel have a part `c` in common and differ by the rest `u`. With `V(c)` the variance of what a function
makes of `c + u`, the product of two tokens about their average has variance `E V(c)^2` over channels, beside the mean
square `E V(c)` of a token. The ratio `E V^2 / (E V)^2` is the fluctuation of fresh channels: 1 where nothing is in
common or the function is linear. Exact for Gaussian channels and many exchangeable tokens.

Under a norm over the batch two effects of that order cancel, so that closed forms have neither and draws, whose kernels
fluctuate, must have both. The kernel of the `d` channels that a map reads has fewer directions than the expected one:
`E tr K^2` is larger by `(tr K)^2 / d`, so that variances over the batch fluctuate more, and `E 1/v` grows by `2/d`. And
the gradient has degree -1 in every channel `y` of what the map makes, of kernel `K`: by Stein's lemma `E (W^T g)^2`
is that of independent weights times `1 + E (y^T K^-1 y - rank K) g^2 / (d E g^2) = 1 - 2/d`, for all pairs of tokens.
With weights of excess kurtosis `k` both are `(2 + k)/d`. What kernels inherit from further below is not in it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sigprop.theory.activations.quadrature import Function
from sigprop.theory.corrections import ACTIVE

if TYPE_CHECKING:
    from sigprop.theory.states import Directions, Signal

ORDER = 24
SMALLEST = 1e-6
ACROSS = 0.03
"""Of the energy along a channel over all tokens, below which none is left."""


@cache
def _nodes() -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(ORDER)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def fresh_fluctuation(function: Function, common: Tensor, rest: Tensor, mean: Tensor) -> Tensor:
    """`E V^2 / (E V)^2` of a function of Gaussian channels with variances `common` and `rest`; 1 where none is left."""
    nodes, weights = _nodes()
    rest = rest.clamp_min(SMALLEST * (common + rest))
    shared = mean[..., None] + common.clamp_min(0.0).sqrt()[..., None] * nodes
    values = function(shared[..., None] + rest.sqrt()[..., None, None] * nodes)
    centred = values - (values * weights).sum(-1, keepdim=True)
    spread = (centred.square() * weights).sum(-1)
    first = (spread * weights).sum(-1)
    relative = spread / first.clamp_min(torch.finfo(first.dtype).tiny)[..., None]
    return torch.where(first > 0.0, (relative.square() * weights).sum(-1), 1.0)


def fixed_below_batch_norm(directions: Directions, fan_in: int) -> float:
    """The factor of the energy below weights, where a norm over the batch took out what is along each channel."""
    across = "pairs" in ACTIVE.get() and bool((torch.as_tensor(directions.channel) < ACROSS).all())
    return 1.0 - 2.0 / fan_in if across else 1.0


def left_to_the_next(x: Signal) -> float:
    """How far a gradient below a norm over the batch may be off before weights below have taken as much out: `2/d` of
    the channels from which they made its input."""
    return float((2.0 * (torch.as_tensor(x.fluctuation.pair) - 1.0) / x.width).max().clamp_min(0.0))
