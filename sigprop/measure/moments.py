"""Mean, variance and token correlation of a tensor, in float64, block by block.

With `x` read as (sequences, tokens, channels), everything follows from the sum `s` and the squared norm `q` of each
token and from the sum over tokens of the unit vectors `u_t = (x_t - c) / |x_t - c|`, since

    |x_t - c|^2 = q_t - 2 c s_t + d c^2,        sum over pairs of cos(t, t') = |sum_t u_t|^2 - T.

So the correlation costs O(T d), and nothing is copied to the host. Blocks are converted to float64 in a scratch
buffer that stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CACHE_BLOCK = 1 << 19
DEVICE_BLOCK = 1 << 25


class Moments:
    """Reduces tensors to (groups, 3): mean, variance (or mean square) and token correlation.

    Tensors are (groups * sequences, tokens, channels), masks (sequences, tokens), true for a real token.
    Tokens that a mask rules out, or whose vector is zero up to rounding, have no cosine.
    """

    def __init__(self) -> None:
        self._scratch: dict[torch.device, Tensor] = {}

    def sums(self, x: Tensor) -> Tensor:
        """Sum and sum of squares of all entries."""
        total = torch.zeros(2, dtype=torch.float64, device=x.device)
        for _, _, block in self._blocks(x.reshape(-1, 1, x.shape[-1] if x.dim() else 1), None):
            total[0] += block.sum()
            total[1] += block.square_().sum()
        return total

    def signal(self, x: Tensor, mask: Tensor | None = None, groups: int = 1) -> Tensor:
        """About the mean of each group."""
        sums = torch.empty(x.shape[:2], dtype=torch.float64, device=x.device)
        squares = torch.empty_like(sums)
        for rows, columns, block in self._blocks(x, mask):
            sums[rows, columns] = block.sum(-1)
            squares[rows, columns] = block.square_().sum(-1)
        count = _count(x, mask, groups)
        mean = sums.view(groups, -1).sum(1) / count
        variance = squares.view(groups, -1).sum(1) / count - mean.square()
        if x.shape[1] < 2:
            return _columns(mean, variance.clamp_min(0.0))
        centre = mean.repeat_interleave(x.shape[0] // groups)[:, None]
        shift = x.shape[2] * centre.square()
        distance = squares - 2.0 * centre * sums + shift
        floor = torch.maximum(1e-13 * (squares + shift), _floor(distance, x, groups))
        weights = _inverse_norms(distance, floor, mask)
        total = self._unit_sum(x, mask, weights) - centre * weights.sum(1, keepdim=True)
        return _columns(mean, variance.clamp_min(0.0), _mean_cosine(total, weights, groups))

    def gradient(self, x: Tensor, mask: Tensor | None = None, groups: int = 1) -> Tensor:
        """About zero; the mean is left out. On a CPU usually in one pass."""
        squares = torch.empty(x.shape[:2], dtype=torch.float64, device=x.device)
        paired, at_once = x.shape[1] > 1, x.device.type == "cpu"
        total = torch.zeros(x.shape[0], x.shape[2] if paired else 0, dtype=torch.float64, device=x.device)
        for rows, columns, block in self._blocks(x, mask):
            here = torch.linalg.vector_norm(block, dim=-1).square_()
            squares[rows, columns] = here
            if paired and at_once:
                total[rows] += torch.bmm(_inverse_norms(here, 0.0, None)[:, None], block)[:, 0]
        second = squares.view(groups, -1).sum(1) / _count(x, mask, groups)
        missing = torch.full_like(second, torch.nan)
        if not paired:
            return _columns(missing, second)
        weights = _inverse_norms(squares, _floor(squares, x, groups), mask)
        if not at_once or bool(((weights == 0) & (squares > 0)).any()):
            total = self._unit_sum(x, mask, weights)
        return _columns(missing, second, _mean_cosine(total, weights, groups))

    def _unit_sum(self, x: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Per sequence, the sum over tokens of `weight * x`."""
        total = torch.zeros(x.shape[0], x.shape[2], dtype=torch.float64, device=x.device)
        for rows, columns, block in self._blocks(x, mask):
            total[rows] += torch.bmm(weights[rows, None, columns], block)[:, 0]
        return total

    def _blocks(self, x: Tensor, mask: Tensor | None) -> Iterator[tuple[slice, slice, Tensor]]:
        """Pieces of `x` as float64, whole sequences where they fit; padding set to zero."""
        sequences, tokens, channels = x.shape
        limit = CACHE_BLOCK if x.device.type == "cpu" else DEVICE_BLOCK
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
