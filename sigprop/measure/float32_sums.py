"""The fast path for float32 tensors on a CPU: short runs in float32, everything above them in float64.

Converting to float64 costs more than summing. So 256 channels of a token, and 64 tokens of a sequence, are summed in
float32, and these partial sums in float64. A token's sums are then good to about 1e-7, and the averages over tokens to
much less, unless the mean dominates the spread or squares leave float32; the caller then starts again in float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHANNEL_RUN = 256
TOKEN_RUN = 64
SMALLEST, LARGEST = 1e-25, 1e30
"""Mean squares between which squares of entries neither underflow nor overflow."""
ROUNDING = 1e-12
"""Squared length, beside that of the longest token, below which a token is rounding noise."""


def token_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and squared norm of each token of (sequences, tokens, channels), as float64."""
    return token_sums_alone(x), token_squares(x)


def token_sums_alone(x: Tensor) -> Tensor:
    """Sum of each token, as float64."""
    return _added([part.sum(-1).double().sum(-1) for part in _runs(x)])


def token_squares(x: Tensor) -> Tensor:
    """Squared norm of each token, as float64."""
    return _added([torch.linalg.vector_norm(part, dim=-1).double().square_().sum(-1) for part in _runs(x)])


def _added(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def unit_sum(x: Tensor, weights: Tensor) -> Tensor:
    """Per sequence, the sum over tokens of `weight * x`, as float64."""
    sequences, tokens, channels = x.shape
    scale = weights.amax()
    scaled = (weights / scale).float() if scale > 0 else weights.float()
    if tokens % TOKEN_RUN == 0 and x.is_contiguous():
        runs = torch.bmm(scaled.view(-1, 1, TOKEN_RUN), x.view(-1, TOKEN_RUN, channels))
        return runs.view(sequences, -1, channels).double().sum(1) * scale
    total = torch.zeros(sequences, channels, dtype=torch.float64)
    for start in range(0, tokens, TOKEN_RUN):
        run = slice(start, start + TOKEN_RUN)
        total += torch.bmm(scaled[:, None, run], x[:, run])[:, 0]
    return total * scale


def in_range(squares: Tensor, channels: int) -> bool:
    """Squares of the entries neither underflow nor overflow in float32."""
    return bool(SMALLEST <= squares.amax() / channels <= LARGEST)


def mean_is_small(mean: Tensor, variance: Tensor, distance: Tensor, scale: Tensor) -> bool:
    """The mean does not dominate, and no token lies so near the mean that rounding decides its direction."""
    return bool((mean.square() <= 4.0 * variance).all() and (distance >= 1e-3 * scale).all())


def _runs(x: Tensor) -> Iterator[Tensor]:
    """(sequences, tokens, runs, channels of a run), and what is left over."""
    whole = x.shape[2] - x.shape[2] % CHANNEL_RUN
    if whole:
        yield x[..., :whole].unflatten(-1, (-1, CHANNEL_RUN))
    if whole < x.shape[2]:
        yield x[..., whole:].unsqueeze(-2)
