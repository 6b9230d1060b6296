"""The fast path for float32 tensors on a CPU: short runs in float32, everything above them in float64.

Converting to float64 costs more than summing. So 1,024 channels of a token, and 512 tokens of a sequence, are summed
in float32, and these partial sums in float64. A token's sums are then good to about 1e-7, and the averages over tokens
to much less, unless the mean dominates the spread or squares leave float32; the caller then starts again in float64.

Torch sums over channels, or over tokens, of tensors; what is left has one number for each token, and is NumPy's, whose
calls cost a third of torch's. Images, whose channels lie a whole image apart, are summed across channels as they lie.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

CHANNEL_RUN = 1024
TOKEN_RUN = 512
BLOCK = 1 << 19
"""Entries, about, that stay in the cache between the sums and the sums of squares."""
SMALLEST, LARGEST = 1e-25, 1e30
"""Mean squares between which squares of entries neither underflow nor overflow."""
ROUNDING = 1e-12
"""Squared length, beside that of the longest token, below which a token is rounding noise."""


def token_sums(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sum and squared norm of each token of (sequences, tokens, channels), as float64."""
    sums, squares = np.empty((2, *x.shape[:2]))
    for place, block in _blocks(x):
        sums[place], squares[place] = _block_sums(block), _block_squares(block)
    return sums, squares


def token_squares(x: Tensor) -> np.ndarray:
    """Squared norm of each token, as float64."""
    squares = np.empty(x.shape[:2])
    for place, block in _blocks(x):
        squares[place] = _block_squares(block)
    return squares


def unit_sum(x: Tensor, weights: np.ndarray) -> np.ndarray:
    """Per sequence, the sum over tokens of `weight * x`, as float64."""
    sequences, tokens, channels = x.shape
    scale = weights.max()
    scaled = torch.from_numpy((weights / scale if scale > 0 else weights).astype(np.float32))
    runs = max(1, round(tokens / TOKEN_RUN))
    if tokens % runs == 0 and x.is_contiguous():
        length = tokens // runs
        parts = torch.bmm(scaled.view(-1, 1, length), x.view(-1, length, channels)).numpy().astype(np.float64)
        return parts.reshape(sequences, runs, channels).sum(1) * scale if runs > 1 else parts[:, 0] * scale
    total = np.zeros((sequences, channels))
    for run in map(slice, *_bounds(tokens, runs)):
        total += torch.bmm(scaled[:, None, run], x[:, run]).numpy()[:, 0]
    return total * scale


def in_range(squares: np.ndarray, channels: int) -> bool:
    """Squares of the entries neither underflow nor overflow in float32."""
    return bool(SMALLEST <= squares.max() / channels <= LARGEST)


def _block_sums(x: Tensor) -> np.ndarray:
    if _is_image(x):
        return x.sum(-1).numpy()
    return _together([part.sum(-1).numpy().astype(np.float64) for part in _runs(x)])


def _block_squares(x: Tensor) -> np.ndarray:
    if _is_image(x):
        return x.square().sum(-1).numpy()
    norms = (torch.linalg.vector_norm(part, dim=-1).numpy() for part in _runs(x))
    return _together([np.square(norm, dtype=np.float64) for norm in norms])


def _together(parts: list[np.ndarray]) -> np.ndarray:
    """Sums over the runs of each part; a product costs less than a sum over few numbers."""
    sums = [part[..., 0] if part.shape[-1] == 1 else part @ np.ones(part.shape[-1]) for part in parts]
    return sums[0] if len(sums) == 1 else sums[0] + sums[1]


def _is_image(x: Tensor) -> bool:
    """Tokens lie side by side and channels apart: a norm over channels would jump, a sum of squares does not."""
    return x.stride(1) == 1 and x.stride(2) > 1


def _blocks(x: Tensor) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """Some sequences, or some tokens of one, at a time."""
    sequences, tokens, channels = x.shape
    fitting = max(1, BLOCK // channels)
    step, width = max(1, fitting // tokens), min(tokens, fitting)
    if step >= sequences:
        yield (slice(None), slice(None)), x
        return
    for first in range(0, sequences, step):
        for start in range(0, tokens, width):
            place = slice(first, first + step), slice(start, start + width)
            yield place, x[place]


def _runs(x: Tensor) -> list[Tensor]:
    """(sequences, tokens, runs, channels of a run), and what is left over."""
    whole = x.shape[2] - x.shape[2] % CHANNEL_RUN
    if not whole:
        return [x.unsqueeze(-2)]
    runs = x[..., :whole].unflatten(-1, (-1, CHANNEL_RUN))
    return [runs] if whole == x.shape[2] else [runs, x[..., whole:].unsqueeze(-2)]


def _bounds(tokens: int, runs: int) -> tuple[list[int], list[int]]:
    """Starts and ends of runs of nearly equal length."""
    ends = [tokens * run // runs for run in range(runs + 1)]
    return ends[:-1], ends[1:]
