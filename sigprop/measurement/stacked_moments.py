"""Moments of many tensors at once with few kernels: the way of a GPU, where a launch costs more than a sum.

With `m_t` and `v_t` the mean and variance over the `d` channels of token `t`, taken in one pass,

    |x_t - c|^2 / d = v_t + (m_t - c)^2 = w_t^-2,        |sum of unit vectors|^2 = |sum_t w_t (x_t - c)|^2 / d,

where `c` is the mean of a signal, and zero for a gradient. Channels are summed in the tensor's own type (float32 for
narrower ones), tokens in float64. That is not good enough where the mean dominates the spread, squares leave float32,
or padding is not finite; `unreliable` says so, and the caller asks again for float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from sigprop.measurement.precision import full_precision

PIECE = 1 << 27


def pays_off(device: torch.device) -> bool:
    """A CPU has no launches to save, and sums faster in another way."""
    return device.type != "cpu"


@dataclass
class StackOfTensors:
    """Tensors of one shape, (items, sequences, tokens, channels): all signals, or all gradients."""

    values: Tensor
    signal: bool


def reduce_stacks(stacks: Sequence[StackOfTensors], mask: Tensor | None, exact: bool = False) -> Tensor:
    """Sums (items, 4 + 2 sequences) that `columns` and `unreliable` read, still on the device.

    All stacks have the same sequences and tokens; `mask` (sequences, tokens) is true for a real token.
    """
    sequences, tokens = stacks[0].values.shape[1:3]
    with full_precision(stacks[0].values.device.type):
        means, variances = _about_centre(stacks, mask, exact).view(2, -1, sequences, tokens)
        centre = _average(means, mask)
        shift = means - centre
        distance = variances.addcmul_(shift, shift)
        if mask is not None:
            distance = torch.where(mask, distance, 0.0)
        longest = distance.amax((1, 2), keepdim=True)
        noise = 1e-26 if stacks[0].values.dtype == torch.float64 else 1e-12
        directed = distance > torch.addcmul(noise * longest, centre, centre, value=1e-13)
        weights = torch.where(directed, distance.rsqrt(), 0.0)
        weights = torch.where(longest == 0, 1.0 if mask is None else mask.double(), weights)
        pieces = (piece for stack in stacks for piece in _pieces(stack, mask, exact))
        squared = _squared_sums(pieces, weights, centre[:, :, 0])
        whole = [centre, _average(distance, mask), longest, weights.amax((1, 2), keepdim=True)]
        return torch.cat([*(part[:, :, 0] for part in whole), directed.sum(2, dtype=torch.float64), squared], dim=1)


def columns(sums: Tensor) -> Tensor:
    """(items, 3): mean, variance and token correlation."""
    directions, squared = sums[:, 4:].chunk(2, dim=1)
    pairs = directions * (directions - 1.0)
    cosine = torch.where(pairs > 0, (squared - directions) / pairs, 0.0)
    correlation = cosine.sum(1, keepdim=True) / (pairs > 0).sum(1, keepdim=True)
    return torch.cat((sums[:, :2], correlation), dim=1)


def unreliable(sums: Tensor) -> Tensor:
    """(items,): true where float32 is not good enough, or a value is not finite.

    Means up to ten times the spread cost less than 1e-7. A constant is told from a spread that vanishes in float32 by
    the squares of token means, which are float64, and zeros from tiny gradients by their plain sum over tokens.
    """
    centre, variance, longest, heaviest = sums[:, :4].T
    vanished = (longest == 0) & (centre == 0) & (sums[:, 4:].sum(1) != 0)
    constant = (longest <= 1e-13 * centre.square()) & ~vanished
    in_range = (longest >= 1e-25) & (longest <= 1e30)
    small_mean = (centre.square() <= 100.0 * variance) & ((centre * heaviest).square() <= 1e4)
    return ~((constant | in_range & small_mean) & sums.isfinite().all(1))


def _pieces(stack: StackOfTensors, mask: Tensor | None, exact: bool) -> Iterator[Tensor]:
    """(sequences of all items, tokens, channels) in the type to sum in, cut where a converted copy would be large.

    With `exact` padding is set to zero, which matters where it is not finite.
    """
    rows = stack.values.flatten(0, 1)
    dtype = torch.float64 if exact else torch.promote_types(rows.dtype, torch.float32)
    if rows.dtype == dtype and not exact:
        yield rows
        return
    padding = ~mask.repeat(len(stack.values), 1)[:, :, None] if exact and mask is not None else None
    step = max(1, PIECE // rows[0].numel())
    for start in range(0, len(rows), step):
        part = rows[start : start + step].to(dtype)
        yield part if padding is None else part.masked_fill(padding[start : start + step], 0.0)


def _about_centre(stacks: Sequence[StackOfTensors], mask: Tensor | None, exact: bool) -> Tensor:
    """(2, ...): mean and variance of each token over its channels; of gradients zero and the mean square."""
    return _joined([_moments(part, stack.signal) for stack in stacks for part in _pieces(stack, mask, exact)])


def _moments(part: Tensor, signal: bool) -> tuple[Tensor, Tensor]:
    """Variance and mean over the last axis; of a gradient the mean square, in half the time, and zero."""
    if signal:
        return torch.var_mean(part, -1, correction=0)
    squares = torch.linalg.vector_norm(part, dim=-1).square_().div_(part.shape[-1])
    return squares, torch.zeros_like(squares)


def _joined(found: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """(2, ...): means and variances of all parts, which are joined along the first axis, as float64."""
    joined = torch.cat([mean for _, mean in found] + [variance for variance, _ in found])
    return joined.double().unflatten(0, (2, -1))


def _squared_sums(pieces: Iterable[Tensor], weights: Tensor, centre: Tensor) -> Tensor:
    """Squared length of the sum of unit vectors, (items, sequences)."""
    alike = groupby(_weighted(pieces, weights), key=lambda part: part.shape[-1])
    sums = [_moments(torch.cat(list(parts)).double(), signal=True) for _, parts in alike]
    means, variances = _joined(sums).view(2, *weights.shape[:2])
    shift = means - centre * weights.sum(2)
    return variances.addcmul_(shift, shift)


def _weighted(pieces: Iterable[Tensor], weights: Tensor) -> Iterator[Tensor]:
    """Sums over tokens of weight times vector, (sequences, 1, channels)."""
    rows, start = weights.flatten(0, 1)[:, None], 0
    for piece in pieces:
        rows = rows.to(piece.dtype)
        yield torch.bmm(rows[start : start + len(piece)], piece)
        start += len(piece)


def _average(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.mean((1, 2), keepdim=True)
    return torch.where(mask, x, 0.0).sum((1, 2), keepdim=True) / mask.sum()
