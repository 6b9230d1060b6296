"""Mean, variance and token correlation of a tensor, in float64, block by block.

With `x` read as (sequences, tokens, channels), everything follows from the sum `s` and the squared norm `q` of each
token and from the sum over tokens of the unit vectors `u_t = (x_t - c) / |x_t - c|`, since

    |x_t - c|^2 = q_t - 2 c s_t + d c^2,        sum over pairs of cos(t, t') = |sum_t u_t|^2 - T.

So the correlation costs O(T d), and nothing is copied to the host. Blocks are converted to float64 in a scratch
buffer that stays in the cache; `single.py` has a faster way for float32 on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from sigprop.measure import single

Block = tuple[slice, slice, Tensor]
Blocks = Callable[[], Iterable[Block]]

CACHE_BLOCK = 1 << 19
DEVICE_BLOCK = 1 << 26


class Moments:
    """Reduces tensors to (groups, 3): mean, variance (or mean square) and token correlation.

    Tensors are (groups * sequences, tokens, channels), masks (sequences, tokens), true for a real token.
    Tokens that a mask rules out, or whose vector is zero up to rounding, have no cosine.
    """

    def __init__(self) -> None:
        self._scratch: dict[torch.device, Tensor] = {}

    def sums(self, x: Tensor) -> Tensor:
        """Sum and sum of squares of all entries."""
        rows = x.reshape(-1, 1, x.shape[-1] if x.dim() else 1)
        if _is_quick(x, None):
            sums, squares = single.token_sums(rows)
            total, square = sums.sum(), squares.sum()
            if single.in_range(squares, rows.shape[2]) and total.square() <= 0.8 * square * x.numel():
                return torch.stack((total, square))
        sums, squares = _token_sums(rows, self._blocks(rows, None))
        return torch.stack((sums.sum(), squares.sum()))

    def signal(self, x: Tensor, mask: Tensor | None = None, groups: int = 1, exact: bool = False) -> Tensor:
        """About the mean of each group; `exact` refuses the fast path."""
        quick = not exact and _is_quick(x, mask)
        blocks = None if quick else self._blocks(x, mask)
        sums, squares = single.token_sums(x) if blocks is None else _token_sums(x, blocks)
        count = _count(x, mask, groups)
        mean = sums.view(groups, -1).sum(1) / count
        variance = (squares.view(groups, -1).sum(1) / count - mean.square()).clamp_min_(0.0)
        centre = mean.repeat_interleave(x.shape[0] // groups)[:, None]
        shift = x.shape[2] * centre.square()
        distance = squares - 2.0 * centre * sums + shift
        if quick and not (
            single.in_range(squares, x.shape[2]) and single.mean_is_small(mean, variance, distance, squares + shift)
        ):
            return self.signal(x, mask, groups, exact=True)
        if x.shape[1] < 2:
            return _columns(mean, variance)
        floor = torch.maximum(1e-13 * (squares + shift), _floor(distance, x, groups))
        weights = _inverse_norms(distance, floor, mask)
        total = single.unit_sum(x, weights) if blocks is None else _unit_sum(x, blocks, weights)
        total -= centre * weights.sum(1, keepdim=True)
        return _columns(mean, variance, _mean_cosine(total, weights, groups))

    def gradient(self, x: Tensor, mask: Tensor | None = None, groups: int = 1) -> Tensor:
        """About zero; the mean is left out."""
        squares = single.token_squares(x) if _is_quick(x, mask) else None
        blocks = None
        if squares is None or not single.in_range(squares, x.shape[2]):
            blocks = self._blocks(x, mask)
            squares = _token_squares(x, blocks)
        second = squares.view(groups, -1).sum(1) / _count(x, mask, groups)
        missing = torch.full_like(second, torch.nan)
        if x.shape[1] < 2:
            return _columns(missing, second)
        weights = _inverse_norms(squares, _floor(squares, x, groups), mask)
        total = single.unit_sum(x, weights) if blocks is None else _unit_sum(x, blocks, weights)
        return _columns(missing, second, _mean_cosine(total, weights, groups))

    def _blocks(self, x: Tensor, mask: Tensor | None) -> Blocks:
        """Pieces of `x` as float64, whole sequences where they fit; padding set to zero.

        The result is called once for each pass. A tensor that fits into one block is converted once.
        """
        limit = CACHE_BLOCK if x.device.type == "cpu" else DEVICE_BLOCK
        pieces = self._converted(x, mask, limit)
        if x.numel() > limit:
            return lambda: self._converted(x, mask, limit)
        ready = list(pieces)
        return lambda: ready

    def _converted(self, x: Tensor, mask: Tensor | None, limit: int) -> Iterator[Block]:
        sequences, tokens, channels = x.shape
        fitting = max(1, limit // channels)
        step, width = max(1, fitting // tokens), min(tokens, fitting)
        scratch = self._buffer(x.device, min(step, sequences) * width * channels)
        for first in range(0, sequences, step):
            for start in range(0, tokens, width):
                rows, columns = slice(first, first + step), slice(start, start + width)
                piece = x[rows, columns]
                block = scratch[: piece.numel()].view(piece.shape)
                block.copy_(piece)
                if mask is not None:
                    block.masked_fill_(~mask[rows, columns, None], 0.0)
                yield rows, columns, block

    def _buffer(self, device: torch.device, size: int) -> Tensor:
        if device not in self._scratch or self._scratch[device].numel() < size:
            self._scratch[device] = torch.empty(size, dtype=torch.float64, device=device)
        return self._scratch[device]


def _is_quick(x: Tensor, mask: Tensor | None) -> bool:
    return mask is None and x.dtype == torch.float32 and x.device.type == "cpu"


def _token_sums(x: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    sums = torch.empty(x.shape[:2], dtype=torch.float64, device=x.device)
    squares = torch.empty_like(sums)
    for rows, columns, block in blocks():
        sums[rows, columns] = block.sum(-1)
        squares[rows, columns] = torch.linalg.vector_norm(block, dim=-1).square_()
    return sums, squares


def _token_squares(x: Tensor, blocks: Blocks) -> Tensor:
    squares = torch.empty(x.shape[:2], dtype=torch.float64, device=x.device)
    for rows, columns, block in blocks():
        squares[rows, columns] = torch.linalg.vector_norm(block, dim=-1).square_()
    return squares


def _unit_sum(x: Tensor, blocks: Blocks, weights: Tensor) -> Tensor:
    """Per sequence, the sum over tokens of `weight * x`."""
    total = torch.zeros(x.shape[0], x.shape[2], dtype=torch.float64, device=x.device)
    for rows, columns, block in blocks():
        total[rows] += torch.bmm(weights[rows, None, columns], block)[:, 0]
    return total


def _count(x: Tensor, mask: Tensor | None, groups: int) -> Tensor | float:
    if mask is None:
        return float(x.numel() // groups)
    return mask.view(groups, -1).sum(1).double() * x.shape[2]


def _inverse_norms(squares: Tensor, floor: Tensor | float, mask: Tensor | None) -> Tensor:
    """`1 / |x_t|`, zero for a token without direction; not-a-number stays visible."""
    weights = torch.where(squares <= floor, 0.0, squares.rsqrt())
    return weights if mask is None else weights * mask


def _floor(squares: Tensor, x: Tensor, groups: int) -> Tensor:
    """Below this squared length a token is rounding noise beside the longest one of its group."""
    noise = 1e-26 if x.dtype == torch.float64 else 1e-12
    longest = squares.view(groups, -1).amax(1)
    return noise * longest.repeat_interleave(x.shape[0] // groups)[:, None]


def _mean_cosine(total: Tensor, weights: Tensor, groups: int) -> Tensor:
    """Average over pairs of tokens that have a direction, then over sequences with a pair."""
    number = (weights != 0).sum(1).double()
    pairs = number * (number - 1.0)
    cosine = torch.where(pairs > 0, (total.square().sum(1) - number) / pairs, 0.0)
    return cosine.view(groups, -1).sum(1) / (pairs > 0).view(groups, -1).sum(1)


def _columns(mean: Tensor, variance: Tensor, correlation: Tensor | None = None) -> Tensor:
    missing = torch.full_like(variance, torch.nan)
    return torch.stack((mean, variance, missing if correlation is None else correlation), dim=1)
