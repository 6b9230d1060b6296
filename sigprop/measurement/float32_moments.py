"""The fast path for float32 tensors on a CPU: short runs in float32, everything above them in float64.

Converting to float64 costs more than summing. So up to 4,096 channels of a token, and 512 tokens of a sequence, are
summed in float32 in several lanes, and these partial sums in float64. A token's sums are then good to about 1e-7, and
the averages over tokens to much less, unless the mean dominates the spread or squares leave float32: the caller then
starts again in float64.

Most tensors of a model are so small that a call costs as much as its sum. So several tensors are reduced in one go, and
what has one number for each token is NumPy's, whose calls cost a third of torch's, as are squared norms where few
threads would share them. Images, whose
channels lie a whole image apart, are summed across channels as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sigprop.compat import read_only_array

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


def reduced(tensors: Sequence[Tensor], signals: Sequence[bool], kept: np.ndarray | None) -> list[list[float] | None]:
    """Mean, variance and token correlation of tensors of the same sequences and tokens; of a gradient about zero.

    None where float32 is too coarse. `kept` is true for a real token. What has one number for each token has a row for
    each tensor.
    """
    sums, squares = _token_sums(tensors, signals)
    channels = np.array([x.shape[2] for x in tensors], dtype=np.float64)[:, None]
    longest = squares.max(1, keepdims=True)
    enough = (longest >= SMALLEST * channels) & (longest <= LARGEST * channels)
    if kept is not None:
        sums, squares = sums * kept.reshape(-1), squares * kept.reshape(-1)
    counts = channels * (sums.shape[1] if kept is None else kept.sum())
    means = sums.sum(1, keepdims=True) / counts
    variances = squares.sum(1, keepdims=True) / counts - means * means
    shifts = channels * means * means
    distances = squares - (2.0 * means) * sums
    distances += shifts
    nearest = distances.min(1, keepdims=True)
    enough &= means * means <= 4.0 * variances
    if (nearest < NEAREST * (longest + shifts)).any():
        enough &= (distances >= NEAREST * (squares + shifts)).all(1, keepdims=True)
    cosines = [math.nan] * len(tensors)
    if tensors[0].shape[1] > 1:
        all_directed = kept is None and bool((nearest > 2.0 * ROUNDING * (longest + shifts)).all())
        if not all_directed:
            distances, nearest = _directed(distances, kept)
        cosines = _mean_cosines(tensors, sums, distances, nearest, means, all_directed)
    found = zip(means[:, 0].tolist(), variances[:, 0].tolist(), cosines, enough[:, 0].tolist(), strict=True)
    return [[mean, variance, cosine] if good else None for mean, variance, cosine, good in found]


def _directed(distances: np.ndarray, kept: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Squared norms, infinite for a token without direction, and the least of each tensor, one where none has one."""
    without = distances <= ROUNDING * distances.max(1, keepdims=True)
    if kept is not None:
        without |= ~kept.reshape(-1)
    distances = np.where(without, np.inf, distances)
    nearest = distances.min(1, keepdims=True)
    return distances, np.where(np.isinf(nearest), 1.0, nearest)


def _mean_cosines(
    tensors: Sequence[Tensor],
    sums: np.ndarray,
    distances: np.ndarray,
    nearest: np.ndarray,
    means: np.ndarray,
    all_directed: bool,
) -> list[float]:
    """Averages over pairs of tokens that have a direction, then over sequences with a pair.

    With `w_t = |x_nearest - c| / |x_t - c|` and `p = sum_t w_t x_t`, the sum of unit vectors has the squared length
    `(|p|^2 - 2 c W sum_t w_t s_t + d c^2 W^2) / |x_nearest - c|^2`, where `W = sum_t w_t` and `s_t` is a token's sum.
    """
    shape = (len(tensors), *tensors[0].shape[:2])
    narrow = 1.0 / np.sqrt((distances * (1.0 / nearest)).astype(np.float32)).reshape(shape)
    weights, given = narrow.astype(np.float64), torch.from_numpy(narrow)
    lengths, channels = np.empty(shape[:2]), np.array([x.shape[2] for x in tensors], dtype=np.float64)[:, None]
    for place, x in enumerate(tensors):
        total = _weighted_sum(x, given[place]).astype(np.float64)
        lengths[place] = np.einsum("nd,nd->n", total, total)
    shifts = means * weights.sum(2)
    lengths += shifts * (channels * shifts - 2.0 * np.einsum("knt,knt->kn", weights, sums.reshape(shape)))
    lengths /= nearest
    if all_directed:
        return ((lengths.mean(1) - shape[2]) / (shape[2] * (shape[2] - 1.0))).tolist()
    number = np.count_nonzero(weights, 2)
    pairs = number * (number - 1.0)
    cosines = np.where(pairs > 0, (lengths - number) / pairs, 0.0)
    return (cosines.sum(1) / np.count_nonzero(pairs, 1)).tolist()


def _token_sums(tensors: Sequence[Tensor], signals: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Sum, of a gradient zero, and squared norm of each token, (tensors, sequences * tokens), as float64."""
    sums, squares = np.zeros((2, len(tensors), *tensors[0].shape[:2]))
    for place, (x, signal) in enumerate(zip(tensors, signals, strict=True)):
        for part in _blocks(x):
            block = x[part] if part else x
            squares[place][part] = _squared_norms(block)
            if signal:
                sums[place][part] = block.sum(-1).numpy()
    return sums.reshape(len(tensors), -1), squares.reshape(len(tensors), -1)


def _weighted_sum(x: Tensor, weights: Tensor) -> np.ndarray:
    """Per sequence, the sum over tokens of `weight * x`."""
    sequences, tokens, channels = x.shape
    runs = max(1, round(tokens / TOKEN_RUN))
    if runs == 1:
        return torch.bmm(weights[:, None], x).numpy()[:, 0]
    if tokens % runs == 0 and x.is_contiguous():
        parts = torch.bmm(weights.view(-1, 1, tokens // runs), x.view(-1, tokens // runs, channels)).numpy()
        return parts.reshape(sequences, runs, channels).sum(1, dtype=np.float64)
    total = np.zeros((sequences, channels))
    for run in map(slice, *_bounds(tokens, runs)):
        total += torch.bmm(weights[:, None, run], x[:, run]).numpy()[:, 0]
    return total


def _squared_norms(x: Tensor) -> np.ndarray:
    """Of each token, (sequences, tokens)."""
    alone = torch.get_num_threads() <= FEW_THREADS or x.numel() <= FEW_ENTRIES
    if x.stride(1) == 1 and x.stride(2) > 1:  # an image: a norm over channels would jump, a sum of squares does not
        if alone and x.shape[1] >= LARGE_IMAGE and x.shape[2] <= FEW_CHANNELS:
            planes = read_only_array(x.mT)
            return np.einsum("nct,nct->nt", planes, planes)
        return x.square().sum(-1).numpy()
    squares = _dotted if alone and hasattr(np, "vecdot") else _normed
    whole = x.shape[2] - x.shape[2] % CHANNEL_RUN
    if whole == 0:
        return squares(x)
    found = squares(x[..., :whole].unflatten(-1, (-1, CHANNEL_RUN))).sum(-1, dtype=np.float64)
    return found if whole == x.shape[2] else found + squares(x[..., whole:])


def _dotted(x: Tensor) -> np.ndarray:
    values = read_only_array(x)
    return np.vecdot(values, values)


def _normed(x: Tensor) -> np.ndarray:
    return np.square(torch.linalg.vector_norm(x, dim=-1).numpy(), dtype=np.float64)


def _blocks(x: Tensor) -> Iterator[tuple[slice, ...]]:
    """All, or some sequences, or some tokens of one, at a time."""
    sequences, tokens, channels = x.shape
    if x.numel() <= BLOCK:
        yield ()
        return
    fitting = max(1, BLOCK // channels)
    step, width = max(1, fitting // tokens), min(tokens, fitting)
    for first in range(0, sequences, step):
        for start in range(0, tokens, width):
            yield slice(first, first + step), slice(start, start + width)


def _bounds(tokens: int, runs: int) -> tuple[list[int], list[int]]:
    """Starts and ends of runs of nearly equal length."""
    ends = [tokens * run // runs for run in range(runs + 1)]
    return ends[:-1], ends[1:]
