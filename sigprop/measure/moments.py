"""Mean, variance and token correlation of a tensor on a CPU, in float64, block by block.

With `x` read as (sequences, tokens, channels), everything follows from the sum `s` and the squared norm `q` of each
token and from the sum over tokens of the unit vectors `u_t = (x_t - c) / |x_t - c|`, since

    |x_t - c|^2 = q_t - 2 c s_t + d c^2,        sum over pairs of cos(t, t') = |sum_t u_t|^2 - T.

So the correlation costs O(T d). Blocks are converted to float64 in a scratch buffer that stays in the cache;
`float32_sums.py` has a faster way for float32, `stacked_moments.py` the way of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sigprop.measure import float32_sums

Block = tuple[slice, slice, Tensor]
Blocks = Callable[[], Iterable[Block]]

CACHE_BLOCK = 1 << 19
CACHE_PIECE, ROW, SMALL = 1 << 18, 256, 1 << 14
MISSING = torch.tensor(torch.nan, dtype=torch.float64)


class Moments:
    """Reduces a tensor on a CPU to three numbers: mean, variance (or mean square) and token correlation.

    Tensors are (sequences, tokens, channels), masks (sequences, tokens), true for a real token.
    Without `float32` nothing is summed in less than float64.
    Tokens that a mask rules out, or whose vector is zero up to rounding, have no cosine.
    """

    def __init__(self, float32: bool = True) -> None:
        self._float32 = float32
        self._scratch = torch.empty(0, dtype=torch.float64)

    def sums(self, x: Tensor) -> Tensor:
        """Sum and sum of squares of all entries."""
        if self.is_quick(x):
            sums, squares = map(torch.cat, zip(*map(float32_sums.token_sums, _pieces(x)), strict=True))
            total, square = sums.sum(), squares.sum()
            if float32_sums.in_range(squares, ROW) and total.square() <= 0.8 * square * x.numel():
                return torch.stack((total, square))
        rows = _rows(x)
        sums, squares = _token_sums(rows, self._blocks(rows, None))
        return torch.stack((sums.sum(), squares.sum()))

    def squares(self, x: Tensor) -> Tensor:
        """Sum of squares of all entries."""
        if self.is_quick(x):
            squares = torch.cat(list(map(float32_sums.token_squares, _pieces(x))))
            if float32_sums.in_range(squares, ROW):
                return squares.sum()
        rows = _rows(x)
        return _token_squares(rows, self._blocks(rows, None)).sum()

    def sums_of(self, tensors: Sequence[Tensor], squares_only: bool = False) -> list[tuple[float, float]]:
        """`sums` of every tensor, small ones together; `squares_only` leaves the sums of large ones out."""
        found: dict[int, tuple[float, float]] = {}
        small = [place for place, x in enumerate(tensors) if self.is_quick(x) and x.numel() <= SMALL]
        for place, sums in zip(small, _small_sums([tensors[place] for place in small]), strict=True):
            if sums is not None:
                found[place] = sums
        for place, x in enumerate(tensors):
            if place not in found:
                found[place] = (0.0, self.squares(x).item()) if squares_only else tuple(self.sums(x).tolist())
        return [found[place] for place in range(len(tensors))]

    def signal(self, x: Tensor, mask: Tensor | None = None, exact: bool = False) -> Tensor:
        """About the mean; `exact` refuses the fast path."""
        quick = not exact and self.is_quick(x)
        blocks = None if quick else self._blocks(x, mask)
        sums, squares = float32_sums.token_sums(x) if blocks is None else _token_sums(x, blocks)
        if quick and not float32_sums.in_range(squares, x.shape[2]):
            return self.signal(x, mask, exact=True)
        if quick and mask is not None:
            sums, squares = sums * mask, squares * mask
        count = _count(x, mask)
        mean = sums.sum() / count
        variance = (squares.sum() / count - mean.square()).clamp_min_(0.0)
        shift = x.shape[2] * mean.square()
        distance = squares - 2.0 * mean * sums + shift
        if quick and not float32_sums.mean_is_small(mean, variance, distance, squares + shift):
            return self.signal(x, mask, exact=True)
        if x.shape[1] < 2:
            return torch.stack((mean, variance, MISSING))
        floor = torch.maximum(1e-13 * (squares + shift), _floor(distance, x))
        weights = _inverse_norms(distance, floor, mask)
        total = float32_sums.unit_sum(x, weights) if blocks is None else _unit_sum(x, blocks, weights)
        total -= mean * weights.sum(1, keepdim=True)
        return torch.stack((mean, variance, _mean_cosine(total, weights)))

    def gradient(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """About zero, which also stands for the mean."""
        squares = float32_sums.token_squares(x) if self.is_quick(x) else None
        blocks = None
        if squares is None or not float32_sums.in_range(squares, x.shape[2]):
            blocks = self._blocks(x, mask)
            squares = _token_squares(x, blocks)
        elif mask is not None:
            squares = squares * mask
        second = squares.sum() / _count(x, mask)
        if x.shape[1] < 2:
            return torch.stack((torch.zeros_like(second), second, MISSING))
        weights = _inverse_norms(squares, _floor(squares, x), mask)
        total = float32_sums.unit_sum(x, weights) if blocks is None else _unit_sum(x, blocks, weights)
        return torch.stack((torch.zeros_like(second), second, _mean_cosine(total, weights)))

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


def _rows(x: Tensor) -> Tensor:
    """Any tensor as (rows, 1, channels)."""
    return x.reshape(-1, 1, x.shape[-1] if x.dim() else 1)


def _pieces(x: Tensor) -> Iterator[Tensor]:
    """Any tensor in pieces that stay in the cache, as (rows, 1, `ROW`), and what is left over."""
    flat = x.reshape(-1)
    whole = flat.numel() - flat.numel() % ROW
    for piece in flat[:whole].split(CACHE_PIECE):
        if piece.numel():
            yield piece.view(-1, 1, ROW)
    if whole < flat.numel():
        yield flat[None, None, whole:]


def _small_sums(tensors: Sequence[Tensor]) -> Iterator[tuple[float, float] | None]:
    """Sum and sum of squares of each, each in rows of its own; None where float32 does not suffice."""
    if not tensors:
        return
    lengths = np.array([-(-x.numel() // ROW) for x in tensors])
    rows = torch.zeros(int(lengths.sum()), 1, ROW)
    for x, part in zip(tensors, rows.view(-1).split((lengths * ROW).tolist()), strict=True):
        part[: x.numel()] = x.reshape(-1)
    columns = [column.numpy()[:, 0] for column in float32_sums.token_sums(rows)]
    starts = np.cumsum(lengths) - lengths
    totals, squares = (np.add.reduceat(column, starts) for column in columns)
    largest = np.maximum.reduceat(columns[1], starts) / ROW
    for x, total, square, most in zip(tensors, totals.tolist(), squares.tolist(), largest.tolist(), strict=True):
        in_range = float32_sums.SMALLEST <= most <= float32_sums.LARGEST and total**2 <= 0.8 * square * x.numel()
        yield (total, square) if in_range or not bool(x.any()) else None


def _token_sums(x: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    sums = torch.empty(x.shape[:2], dtype=torch.float64)
    squares = torch.empty_like(sums)
    for rows, columns, block in blocks():
        sums[rows, columns] = block.sum(-1)
        squares[rows, columns] = torch.linalg.vector_norm(block, dim=-1).square_()
    return sums, squares


def _token_squares(x: Tensor, blocks: Blocks) -> Tensor:
    squares = torch.empty(x.shape[:2], dtype=torch.float64)
    for rows, columns, block in blocks():
        squares[rows, columns] = torch.linalg.vector_norm(block, dim=-1).square_()
    return squares


def _unit_sum(x: Tensor, blocks: Blocks, weights: Tensor) -> Tensor:
    """Per sequence, the sum over tokens of `weight * x`."""
    total = torch.zeros(x.shape[0], x.shape[2], dtype=torch.float64)
    for rows, columns, block in blocks():
        total[rows] += torch.bmm(weights[rows, None, columns], block)[:, 0]
    return total


def _count(x: Tensor, mask: Tensor | None) -> Tensor | float:
    return float(x.numel()) if mask is None else mask.sum().double() * x.shape[2]


def _inverse_norms(squares: Tensor, floor: Tensor, mask: Tensor | None) -> Tensor:
    """`1 / |x_t|`, zero for a token without direction; not-a-number stays visible."""
    weights = torch.where(squares <= floor, 0.0, squares.rsqrt())
    return weights if mask is None else weights * mask


def _floor(squares: Tensor, x: Tensor) -> Tensor:
    """Below this squared length a token is rounding noise beside the longest one."""
    return (1e-26 if x.dtype == torch.float64 else float32_sums.ROUNDING) * squares.amax()


def _mean_cosine(total: Tensor, weights: Tensor) -> Tensor:
    """Average over pairs of tokens that have a direction, then over sequences with a pair."""
    number = (weights != 0).sum(1).double()
    pairs = number * (number - 1.0)
    cosine = torch.where(pairs > 0, (total.square().sum(1) - number) / pairs, 0.0)
    return cosine.sum() / (pairs > 0).sum()
