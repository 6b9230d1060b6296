"""Moments of many tensors at once with few kernels: the way of a GPU, where a launch costs more than a sum.

With `m_t` and `v_t` the mean and variance over the `d` channels of token `t`, taken in one pass,

    |x_t - c|^2 / d = v_t + (m_t - c)^2 = w_t^-2,        |sum of unit vectors|^2 = |sum_t w_t (x_t - c)|^2 / d,

where `c` is the mean of a signal, and zero for a gradient. Channels are summed in the tensor's own type (float32 for
narrower ones), tokens in float64. That is not good enough where the mean dominates the spread, squares leave float32,
or padding is not finite; `unreliable` says so, and the caller asks again for float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.measure.precision import full_precision

PIECE = 1 << 27


def pays_off(device: torch.device) -> bool:
    """A CPU has no launches to save, and sums faster in another way."""
    return device.type != "cpu"


@dataclass
class Stack:
    """Tensors of one shape, (items, sequences, tokens, channels); the first `signals` items are no gradients."""

    values: Tensor
    signals: int


def reduce_together(stacks: Sequence[Stack], mask: Tensor | None, exact: bool = False) -> Tensor:
    """Sums (items, 4 + 2 sequences) that `columns` and `unreliable` read, still on the device.

    All stacks have the same sequences and tokens; `mask` (sequences, tokens) is true for a real token.
    """
    with full_precision(stacks[0].values.device.type):
        means, variances = _token_moments(stacks, mask, exact)
        centre = _average(means, mask)
        _clear_gradients(centre, stacks)
        shift = means - centre
        distance = variances.addcmul_(shift, shift)
        if mask is not None:
            distance = torch.where(mask, distance, 0.0)
        longest = distance.amax((1, 2), keepdim=True)
        noise = 1e-26 if stacks[0].values.dtype == torch.float64 else 1e-12
        floor = torch.addcmul(noise * longest, centre, centre, value=1e-13)
        weights = distance.rsqrt().masked_fill_(distance <= floor, 0.0)
        heaviest = weights.amax((1, 2), keepdim=True)
        parts = [centre, _average(distance, mask), longest, heaviest]
        directions = weights.count_nonzero(-1).double()
        squared = _squared_sums(stacks, mask, exact, weights, centre[:, :, 0])
        return torch.cat([*(part[:, :, 0] for part in parts), directions, squared], dim=1)


def columns(sums: Tensor) -> Tensor:
    """(items, 3): mean, variance and token correlation."""
    directions, squared = sums[:, 4:].chunk(2, dim=1)
    pairs = directions * (directions - 1.0)
    cosine = torch.where(pairs > 0, (squared - directions) / pairs, 0.0)
    correlation = cosine.sum(1, keepdim=True) / (pairs > 0).sum(1, keepdim=True)
    return torch.cat((sums[:, :2], correlation), dim=1)


def unreliable(sums: Tensor) -> Tensor:
    """(items,): true where float32 is not good enough, or where nothing can be said: all zero, not finite."""
    centre, variance, longest, heaviest = sums[:, :4].T
    in_range = (longest >= 1e-25) & (longest <= 1e30)
    small_mean = (centre.square() <= 4.0 * variance) & ((centre * heaviest).square() <= 1e3)
    return ~(in_range & small_mean & sums.isfinite().all(1))


def _token_moments(stacks: Sequence[Stack], mask: Tensor | None, exact: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance over the channels of every token, (items, sequences, tokens), as float64."""
    means, variances = [], []
    for stack in stacks:
        for rows in _pieces(stack.values, mask, exact):
            variance, mean = torch.var_mean(rows, -1, correction=0)
            means.append(mean)
            variances.append(variance)
    shape = stacks[0].values.shape[1:3]
    return tuple(_joined(parts).double().view(-1, *shape) for parts in (means, variances))  # type: ignore[return-value]


def _squared_sums(stacks: Sequence[Stack], mask: Tensor | None, exact: bool, weights: Tensor, centre: Tensor) -> Tensor:
    """Squared length of the sum of unit vectors, (items, sequences)."""
    if weights.shape[2] == 1:
        return torch.zeros_like(weights[:, :, 0])
    rows_of_weights = weights.flatten(0, 1)[:, None]
    means, variances, start = [], [], 0
    for stack in stacks:
        for rows in _pieces(stack.values, mask, exact):
            part = rows_of_weights[start : start + len(rows)].to(rows.dtype)
            variance, mean = torch.var_mean(torch.bmm(part, rows), -1, correction=0)
            means.append(mean)
            variances.append(variance)
            start += len(rows)
    mean, variance = (_joined(parts).double().view(weights.shape[:2]) for parts in (means, variances))
    shift = mean - centre * weights.sum(2)
    return variance.addcmul_(shift, shift)


def _pieces(values: Tensor, mask: Tensor | None, exact: bool) -> Iterator[Tensor]:
    """(sequences of all items, tokens, channels) in the type to sum in, cut where a converted copy would be large.

    With `exact` padding is set to zero, which matters where it is not finite.
    """
    rows = values.flatten(0, 1)
    dtype = torch.float64 if exact else torch.promote_types(rows.dtype, torch.float32)
    if rows.dtype == dtype and not exact:
        yield rows
        return
    padding = None if mask is None else ~mask.repeat(len(values), 1)[:, :, None]
    start = 0
    for part in rows.split(max(1, PIECE // rows[0].numel())):
        converted = part.to(dtype)
        if exact and padding is not None:
            converted = converted.masked_fill(padding[start : start + len(part)], 0.0)
        yield converted
        start += len(part)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _average(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.mean((1, 2), keepdim=True)
    return torch.where(mask, x, 0.0).sum((1, 2), keepdim=True) / mask.sum()


def _clear_gradients(centre: Tensor, stacks: Sequence[Stack]) -> None:
    """Gradients are taken about zero."""
    start = 0
    for stack in stacks:
        end = start + len(stack.values)
        if start + stack.signals < end:
            centre[start + stack.signals : end].zero_()
        start = end
