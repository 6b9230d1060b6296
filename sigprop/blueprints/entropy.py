"""What a softmax makes of random scores: its entropy and its largest weight.

For `n` scores, independent and normal with variance `v` apart from what all share (which softmax does not see), both
are functions of `n` and `v` alone: `H = ln n - (1 - 1/n) v/2` for small `v`, and near zero where `v` is far above
`2 ln n`. They are tabulated over fixed draws, to about 0.01 nats, and interpolated in `log v`. At a finite head width
`d` the variance itself fluctuates from query to query as `chi^2_d / d`, over which they are averaged.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import gammaincinv

ROWS, LEVELS, NODES = 512, 40, 8
LEAST, MOST = 1e-3, 1e4


class Sharpness(NamedTuple):
    """Of the weights of one query, averaged over queries: entropy in nats, and the largest weight."""

    entropy: np.ndarray
    largest: np.ndarray


def softmax_sharpness(variance: np.ndarray, keys: int, head_width: int | None = None) -> Sharpness:
    """Entropy and largest weight among `keys` for every variance of the scores over keys.

    `head_width` is None where queries have one length, as behind a norm.
    """
    variance = np.asarray(variance, dtype=float)
    if keys == 1:
        return Sharpness(np.zeros_like(variance), np.ones_like(variance))
    levels, entropy, largest = _table(keys)
    factors = np.ones(1)
    if head_width is not None:
        factors = 2.0 * gammaincinv(head_width / 2.0, (np.arange(NODES) + 0.5) / NODES) / head_width
        factors /= factors.mean()
    places = np.log(np.clip(variance[..., None] * factors, LEAST, MOST))
    small = variance < LEAST
    found = [np.interp(places, levels, table).mean(-1) for table in (entropy, largest)]
    flat = math.log(keys) - (1.0 - 1.0 / keys) * variance / 2.0
    return Sharpness(np.where(small, flat, found[0]), found[1])


@lru_cache(maxsize=256)
def _table(keys: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = max(ROWS, (1 << 14) // keys)
    scores = torch.randn(rows, keys, generator=torch.Generator().manual_seed(keys), dtype=torch.float64)
    levels = torch.linspace(math.log(LEAST), math.log(MOST), LEVELS, dtype=torch.float64)
    weights = [(scores * level).softmax(-1) for level in (levels / 2).exp()]
    entropy = torch.stack([-torch.special.xlogy(item, item).sum(-1).mean() for item in weights])
    largest = torch.stack([item.amax(-1).mean() for item in weights])
    return levels.numpy(), entropy.numpy(), largest.numpy()
