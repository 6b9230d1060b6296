"""The fast path for float32 tensors on a CPU: short runs in float32, everything above them in float64.

Converting to float64 costs more than summing. So up to 4,096 channels of a token, and 512 tokens of a sequence, are
summed in float32 in several lanes, and these partial sums in float64. A token's sums are then good to about 1e-7, and
the averages over tokens to much less, unless the mean dominates the spread or squares leave float32: then nothing is
returned, and the caller starts again in float64.

Most tensors of a model are small enough for a call to cost as much as its sum. So what has one number for each token is
NumPy's, whose calls cost a third of torch's, as are squared norms where few threads would share them. Images, whose
channels lie a whole image apart, are summed across channels as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CHANNEL_RUN = 4096
TOKEN_RUN = 512
BLOCK = 1 << 19
"""Entries, about, that stay in the cache between the sums and the sums of squares."""
SMALLEST, LARGEST = 1e-25, 1e30
"""Mean squares between which squares of entries neither underflow nor overflow."""
ROUNDING = 1e-12
"""Squared length, beside that of the longest token, below which a token is rounding noise."""
NEAREST = 1e-3
"""Squared distance from the mean, beside the squares it is a difference of, for which float32 is good enough."""
FEW_THREADS, FEW_ENTRIES = 2, 1 << 16
"""Up to which NumPy, on one thread, takes squared norms faster than torch on all."""
LARGE_IMAGE, FEW_CHANNELS = 128, 512


class Directions(NamedTuple):
    """Inverse norms of all tokens, (sequences, tokens), zero for one without direction; and whether all have one."""

    weights: np.ndarray
    all_directed: bool


def signal(x: Tensor, kept: np.ndarray | None) -> list[float] | None:
    """Mean, variance and token correlation about the mean; None where float32 does not suffice."""
    sums, squares = token_sums(x)
    longest = float(squares.max())
    if not in_range(longest, x.shape[2]):
        return None
    count = float(x.numel())
    if kept is not None:
        sums, squares, count = sums * kept, squares * kept, float(kept.sum() * x.shape[2])
    mean = float(np.add.reduce(sums, axis=None)) / count
    variance = float(np.add.reduce(squares, axis=None)) / count - mean * mean
    shift = x.shape[2] * mean * mean
    distance = squares - (2.0 * mean) * sums
    distance += shift
    nearest = float(distance.min())
    if not mean * mean <= 4.0 * variance:
        return None
    if nearest < NEAREST * (longest + shift) and not (distance >= NEAREST * (squares + shift)).all():
        return None
    if x.shape[1] < 2:
        return [mean, variance, math.nan]
    directions = _directions(distance, nearest, longest + shift, kept)
    total = unit_sum(x, directions.weights)
    total -= mean * directions.weights.sum(1, keepdims=True)
    return [mean, variance, mean_cosine(total, *directions)]


def gradient(x: Tensor, kept: np.ndarray | None) -> list[float] | None:
    """Zero, mean square and token correlation about zero; None where float32 does not suffice."""
    squares = token_squares(x)
    longest = float(squares.max())
    if not in_range(longest, x.shape[2]):
        return None
    count = float(x.numel())
    if kept is not None:
        squares, count = squares * kept, float(kept.sum() * x.shape[2])
    second = float(np.add.reduce(squares, axis=None)) / count
    if x.shape[1] < 2:
        return [0.0, second, math.nan]
    directions = _directions(squares, float(squares.min()), longest, kept)
    return [0.0, second, mean_cosine(unit_sum(x, directions.weights), *directions)]


def in_range(longest: float, channels: int) -> bool:
    """Squares of the entries, of which the longest token has the largest sum, neither underflow nor overflow."""
    return SMALLEST <= longest / channels <= LARGEST


def token_sums(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sum and squared norm of each token of (sequences, tokens, channels), as float64."""
    if x.numel() <= BLOCK:
        return x.sum(-1).numpy().astype(np.float64), _squared_norms(x)
    sums, squares = np.empty((2, *x.shape[:2]))
    for place in _blocks(x):
        block = x[place]
        sums[place], squares[place] = block.sum(-1).numpy(), _squared_norms(block)
    return sums, squares


def token_squares(x: Tensor) -> np.ndarray:
    """Squared norm of each token, as float64."""
    if x.numel() <= BLOCK:
        return _squared_norms(x)
    squares = np.empty(x.shape[:2])
    for place in _blocks(x):
        squares[place] = _squared_norms(x[place])
    return squares


def unit_sum(x: Tensor, weights: np.ndarray) -> np.ndarray:
    """Per sequence, the sum over tokens of `weight * x`, as float64."""
    sequences, tokens, channels = x.shape
    scale = float(weights.max()) or 1.0
    scaled = torch.from_numpy((weights * (1.0 / scale)).astype(np.float32))
    runs = max(1, round(tokens / TOKEN_RUN))
    if runs == 1:
        total = torch.bmm(scaled.view(sequences, 1, tokens), x).numpy()[:, 0].astype(np.float64)
    elif tokens % runs == 0 and x.is_contiguous():
        parts = torch.bmm(scaled.view(-1, 1, tokens // runs), x.view(-1, tokens // runs, channels)).numpy()
        total = parts.reshape(sequences, runs, channels).sum(1, dtype=np.float64)
    else:
        total = np.zeros((sequences, channels))
        for run in map(slice, *_bounds(tokens, runs)):
            total += torch.bmm(scaled[:, None, run], x[:, run]).numpy()[:, 0]
    total *= scale
    return total


def inverse_norms(squares: np.ndarray, floor: np.ndarray | float, kept: np.ndarray | None) -> Directions:
    """`1 / |x_t|`, zero for a token without direction; not-a-number stays visible."""
    weights = 1.0 / np.sqrt(squares)
    without = squares <= floor
    if without.any():
        weights[without] = 0.0
    if kept is not None:
        weights *= kept
    return Directions(weights, bool(weights.all()))


def mean_cosine(total: np.ndarray, weights: np.ndarray, all_directed: bool) -> float:
    """Average over pairs of tokens that have a direction, then over sequences with a pair."""
    sequences, tokens = weights.shape
    if all_directed:
        return float((np.vdot(total, total) / sequences - tokens) / (tokens * (tokens - 1.0)))
    number = np.count_nonzero(weights, 1)
    pairs = number * (number - 1.0)
    cosine = np.where(pairs > 0, (np.square(total).sum(1) - number) / pairs, 0.0)
    return float(cosine.sum() / np.count_nonzero(pairs))


def _directions(squares: np.ndarray, shortest: float, scale: float, kept: np.ndarray | None) -> Directions:
    """Of tokens with these squared norms, which are at most `2 * scale`."""
    if kept is not None or shortest <= 2.0 * ROUNDING * scale:
        return inverse_norms(squares, ROUNDING * squares.max(), kept)
    weights = np.sqrt(squares)
    return Directions(np.divide(1.0, weights, out=weights), True)


def _squared_norms(x: Tensor) -> np.ndarray:
    """Of each token, as float64."""
    alone = torch.get_num_threads() <= FEW_THREADS or x.numel() <= FEW_ENTRIES
    if x.stride(1) == 1 and x.stride(2) > 1:  # an image: a norm over channels would jump, a sum of squares does not
        if alone and x.shape[1] >= LARGE_IMAGE and x.shape[2] <= FEW_CHANNELS:
            planes = x.mT.numpy()
            return np.einsum("nct,nct->nt", planes, planes).astype(np.float64)
        return x.square().sum(-1).numpy().astype(np.float64)
    squares = _dotted if alone and hasattr(np, "vecdot") else _normed
    whole = x.shape[2] - x.shape[2] % CHANNEL_RUN
    if whole == 0:
        return squares(x)
    found = squares(x[..., :whole].unflatten(-1, (-1, CHANNEL_RUN))).sum(-1)
    return found if whole == x.shape[2] else found + squares(x[..., whole:])


def _dotted(x: Tensor) -> np.ndarray:
    values = x.numpy()
    return np.vecdot(values, values).astype(np.float64)


def _normed(x: Tensor) -> np.ndarray:
    return np.square(torch.linalg.vector_norm(x, dim=-1).numpy(), dtype=np.float64)


def _blocks(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Some sequences, or some tokens of one, at a time."""
    sequences, tokens, channels = x.shape
    fitting = max(1, BLOCK // channels)
    step, width = max(1, fitting // tokens), min(tokens, fitting)
    for first in range(0, sequences, step):
        for start in range(0, tokens, width):
            yield slice(first, first + step), slice(start, start + width)


def _bounds(tokens: int, runs: int) -> tuple[list[int], list[int]]:
    """Starts and ends of runs of nearly equal length."""
    ends = [tokens * run // runs for run in range(runs + 1)]
    return ends[:-1], ends[1:]
