"""Mean, variance and token correlation of a tensor, in float64, block by block, on its device.

With `x` read as (sequences, tokens, channels), everything follows from the sum `s` and the squared norm `q` of each
token and from the sum over tokens of the unit vectors `u_t = (x_t - c) / |x_t - c|`, since

    |x_t - c|^2 = q_t - 2 c s_t + d c^2,        sum over pairs of cos(t, t') = |sum_t u_t|^2 - T.

So the correlation costs O(T d). Blocks are converted to float64 in a scratch buffer, which stays in the cache of a CPU.
The three numbers stay on the device, so that a site waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

Block = tuple[slice, slice, Tensor]
Blocks = Callable[[], Iterable[Block]]

BLOCK = {"cpu": 1 << 19}
LARGE_BLOCK = 1 << 24
"""Entries converted at once: what a CPU's cache holds; elsewhere few kernels count."""
ROUNDING, EXACT_ROUNDING = 1e-12, 1e-26
"""Squared length, beside that of the longest token, below which a token is rounding noise; for float64."""


class Moments:
    """Reduces a tensor to three numbers: mean, variance (or mean square) and token correlation.

    Tensors are (sequences, tokens, channels), masks (sequences, tokens), true for a real token.
    Tokens that a mask rules out, or whose vector is zero up to rounding, have no cosine.
    """

    def __init__(self) -> None:
        self._scratch: dict[torch.device, Tensor] = {}

    def signal(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """About the mean."""
        blocks = self._blocks(x, mask)
        sums, squares = torch.empty(2, *x.shape[:2], dtype=torch.float64, device=x.device)
        for rows, columns, block in blocks():
            sums[rows, columns] = block.sum(-1)
            squares[rows, columns] = _squared_norms(block)
        count = _count(x, mask)
        mean = sums.sum() / count
        shift = x.shape[2] * mean * mean
        distance = squares - (2.0 * mean) * sums + shift
        variance = ((distance if mask is None else distance * mask).sum() / count).clamp_min(0.0)
        floor = torch.maximum(1e-13 * (squares + shift), _floor(distance, x))
        return torch.stack([mean, variance, _correlation(x, blocks, distance, floor, mask, mean)])

    def gradient(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """About zero, which also stands for the mean."""
        blocks = self._blocks(x, mask)
        squares = torch.empty(x.shape[:2], dtype=torch.float64, device=x.device)
        for rows, columns, block in blocks():
            squares[rows, columns] = _squared_norms(block)
        second = squares.sum() / _count(x, mask)
        zero = torch.zeros_like(second)
        return torch.stack([zero, second, _correlation(x, blocks, squares, _floor(squares, x), mask, zero)])

    def _blocks(self, x: Tensor, mask: Tensor | None) -> Blocks:
        """Pieces of `x` as float64, whole sequences where they fit; padding set to zero.

        The result is called once for each pass. A tensor that fits into one block is converted once.
        """
        if x.numel() > BLOCK.get(x.device.type, LARGE_BLOCK):
            return lambda: self._converted(x, mask)
        ready = list(self._converted(x, mask))
        return lambda: ready

    def _converted(self, x: Tensor, mask: Tensor | None) -> Iterator[Block]:
        """Images, whose channels lie a whole image apart, are converted as they lie."""
        sequences, tokens, channels = x.shape
        fitting = max(1, BLOCK.get(x.device.type, LARGE_BLOCK) // channels)
        step, width = max(1, fitting // tokens), min(tokens, fitting)
        size = min(step, sequences) * width * channels
        scratch = self._scratch.get(x.device)
        if scratch is None or scratch.numel() < size:
            scratch = self._scratch[x.device] = torch.empty(size, dtype=torch.float64, device=x.device)
        for first in range(0, sequences, step):
            for start in range(0, tokens, width):
                rows, columns = slice(first, first + step), slice(start, start + width)
                piece = x[rows, columns]
                block = scratch[: piece.numel()]
                block = block.view(piece.mT.shape).mT if _is_image(piece) else block.view(piece.shape)
                block.copy_(piece)
                if mask is not None:
                    block.masked_fill_(~mask[rows, columns, None], 0.0)
                yield rows, columns, block


def _is_image(x: Tensor) -> bool:
    return x.stride(1) == 1 and x.stride(2) > 1


def _squared_norms(block: Tensor) -> Tensor:
    """Of each token; a norm over channels would jump where they lie apart, a sum of squares does not."""
    return (block * block).sum(-1) if _is_image(block) else torch.linalg.vector_norm(block, dim=-1).square_()


def _count(x: Tensor, mask: Tensor | None) -> Tensor | int:
    return x.numel() if mask is None else mask.sum() * x.shape[2]


def _floor(squares: Tensor, x: Tensor) -> Tensor:
    return (EXACT_ROUNDING if x.dtype == torch.float64 else ROUNDING) * squares.max()


def _correlation(
    x: Tensor, blocks: Blocks, squares: Tensor, floor: Tensor, mask: Tensor | None, mean: Tensor
) -> Tensor:
    """Average cosine over pairs of tokens that have a direction, then over sequences with a pair; not-a-number stays
    visible."""
    if x.shape[1] < 2:
        return torch.full_like(mean, torch.nan)
    weights = torch.where(squares <= floor, 0.0, squares.rsqrt())
    if mask is not None:
        weights = weights * mask
    total = torch.zeros(x.shape[0], x.shape[2], dtype=torch.float64, device=x.device)
    for rows, columns, block in blocks():
        total[rows] += torch.bmm(weights[rows, None, columns], block)[:, 0]
    total -= mean * weights.sum(1, keepdim=True)
    number = torch.count_nonzero(weights, 1)
    pairs = number * (number - 1.0)
    cosine = torch.where(pairs > 0, (total.square().sum(1) - number) / pairs, 0.0)
    return cosine.sum() / torch.count_nonzero(pairs)
