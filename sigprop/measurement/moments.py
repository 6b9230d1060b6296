"""Mean, variance and token correlation of a tensor on a CPU, in float64, block by block.

With `x` read as (sequences, tokens, channels), everything follows from the sum `s` and the squared norm `q` of each
token and from the sum over tokens of the unit vectors `u_t = (x_t - c) / |x_t - c|`, since

    |x_t - c|^2 = q_t - 2 c s_t + d c^2,        sum over pairs of cos(t, t') = |sum_t u_t|^2 - T.

So the correlation costs O(T d). Blocks are converted to float64 in a scratch buffer that stays in the cache;
`float32_moments.py` has a faster way for float32, `stacked_moments.py` the way of a GPU. What has one number for each
token is NumPy's, whose calls cost a third of torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sigprop.measurement import float32_moments

Block = tuple[slice, slice, Tensor]
Blocks = Callable[[], Iterable[Block]]

CACHE_BLOCK = 1 << 19


class Moments:
    """Reduces a tensor on a CPU to three numbers: mean, variance (or mean square) and token correlation.

    Tensors are (sequences, tokens, channels), masks (sequences, tokens), true for a real token.
    Without `float32` nothing is summed in less than float64.
    Tokens that a mask rules out, or whose vector is zero up to rounding, have no cosine.
    """

    def __init__(self, float32: bool = True) -> None:
        self._float32 = float32
        self._scratch = torch.empty(0, dtype=torch.float64)

    def signal(self, x: Tensor, mask: Tensor | None = None, exact: bool = False) -> list[float]:
        """About the mean; `exact` refuses the fast path."""
        return self._exact_signal(x, mask) if exact else self.together([x], [True], mask)[0]

    def gradient(self, x: Tensor, mask: Tensor | None = None) -> list[float]:
        """About zero, which also stands for the mean."""
        return self.together([x], [False], mask)[0]

    @np.errstate(all="ignore")
    def together(self, tensors: Sequence[Tensor], signals: Sequence[bool], mask: Tensor | None) -> list[list[float]]:
        """Of signals and gradients of the same sequences and tokens."""
        quick = [place for place, x in enumerate(tensors) if self.is_quick(x)]
        found: list[list[float] | None] = [None] * len(tensors)
        if quick:
            kept = None if mask is None else mask.numpy()
            chosen = [tensors[place] for place in quick], [signals[place] for place in quick]
            for place, numbers in zip(quick, float32_moments.reduced(*chosen, kept), strict=True):
                found[place] = numbers
        return [
            numbers or (self._exact_signal(x, mask) if signal else self._exact_gradient(x, mask))
            for x, signal, numbers in zip(tensors, signals, found, strict=True)
        ]

    @np.errstate(all="ignore")
    def _exact_signal(self, x: Tensor, mask: Tensor | None) -> list[float]:
        kept = None if mask is None else mask.numpy()
        blocks = self._blocks(x, mask)
        sums, squares = _token_sums(x, blocks)
        count = _count(x, kept)
        mean = sums.sum() / count
        shift = x.shape[2] * mean * mean
        distance, scale = squares - (2.0 * mean) * sums + shift, squares + shift
        variance = np.maximum((distance if kept is None else distance * kept).sum() / count, 0.0)
        if x.shape[1] < 2:
            return [float(mean), float(variance), math.nan]
        weights = _inverse_norms(distance, np.maximum(1e-13 * scale, _floor(distance, x)), kept)
        total = _unit_sum(x, blocks, weights) - mean * weights.sum(1, keepdims=True)
        return [float(mean), float(variance), _mean_cosine(total, weights)]

    @np.errstate(all="ignore")
    def _exact_gradient(self, x: Tensor, mask: Tensor | None) -> list[float]:
        kept = None if mask is None else mask.numpy()
        blocks = self._blocks(x, mask)
        squares = _token_squares(x, blocks)
        second = float(squares.sum() / _count(x, kept))
        if x.shape[1] < 2:
            return [0.0, second, math.nan]
        weights = _inverse_norms(squares, _floor(squares, x), kept)
        return [0.0, second, _mean_cosine(_unit_sum(x, blocks, weights), weights)]

    def is_quick(self, x: Tensor) -> bool:
        """Whether short runs of it are summed in float32."""
        return self._float32 and x.dtype == torch.float32

    def _blocks(self, x: Tensor, mask: Tensor | None) -> Blocks:
        """Pieces of `x` as float64, whole sequences where they fit; padding set to zero.

        The result is called once for each pass. A tensor that fits into one block is converted once.
        """
        if x.numel() > CACHE_BLOCK:
            return lambda: self._converted(x, mask)
        ready = list(self._converted(x, mask))
        return lambda: ready

    def _converted(self, x: Tensor, mask: Tensor | None) -> Iterator[Block]:
        sequences, tokens, channels = x.shape
        fitting = max(1, CACHE_BLOCK // channels)
        step, width = max(1, fitting // tokens), min(tokens, fitting)
        size = min(step, sequences) * width * channels
        if self._scratch.numel() < size:
            self._scratch = torch.empty(size, dtype=torch.float64)
        for first in range(0, sequences, step):
            for start in range(0, tokens, width):
                rows, columns = slice(first, first + step), slice(start, start + width)
                piece = x[rows, columns]
                block = self._scratch[: piece.numel()].view(piece.shape)
                block.copy_(piece)
                if mask is not None:
                    block.masked_fill_(~mask[rows, columns, None], 0.0)
                yield rows, columns, block


def _token_sums(x: Tensor, blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    sums, squares = np.empty((2, *x.shape[:2]))
    for rows, columns, block in blocks():
        sums[rows, columns] = block.sum(-1)
        squares[rows, columns] = torch.linalg.vector_norm(block, dim=-1).square_()
    return sums, squares


def _token_squares(x: Tensor, blocks: Blocks) -> np.ndarray:
    squares = np.empty(x.shape[:2])
    for rows, columns, block in blocks():
        squares[rows, columns] = torch.linalg.vector_norm(block, dim=-1).square_()
    return squares


def _unit_sum(x: Tensor, blocks: Blocks, weights: np.ndarray) -> np.ndarray:
    """Per sequence, the sum over tokens of `weight * x`."""
    total, given = torch.zeros(x.shape[0], x.shape[2], dtype=torch.float64), torch.from_numpy(weights)
    for rows, columns, block in blocks():
        total[rows] += torch.bmm(given[rows, None, columns], block)[:, 0]
    return total.numpy()


def _count(x: Tensor, mask: np.ndarray | None) -> float:
    return float(x.numel() if mask is None else mask.sum() * x.shape[2])


def _inverse_norms(squares: np.ndarray, floor: np.ndarray | float, mask: np.ndarray | None) -> np.ndarray:
    """`1 / |x_t|`, zero for a token without direction; not-a-number stays visible."""
    weights = 1.0 / np.sqrt(squares)
    without = squares <= floor
    if without.any():
        weights[without] = 0.0
    return weights if mask is None else weights * mask


def _floor(squares: np.ndarray, x: Tensor) -> float:
    """Below this squared length a token is rounding noise beside the longest one."""
    return (1e-26 if x.dtype == torch.float64 else float32_moments.ROUNDING) * squares.max()


def _mean_cosine(total: np.ndarray, weights: np.ndarray) -> float:
    """Average over pairs of tokens that have a direction, then over sequences with a pair."""
    number = np.count_nonzero(weights, 1)
    pairs = number * (number - 1.0)
    cosine = np.where(pairs > 0, (np.square(total).sum(1) - number) / pairs, 0.0)
    return float(cosine.sum() / np.count_nonzero(pairs))
