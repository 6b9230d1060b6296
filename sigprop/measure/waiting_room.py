"""Small tensors on a CPU wait, as copies, and are reduced together: one by one the calls cost more than the sums.

Those of one shape and mask share a buffer; it is reduced when it is full, and at the end. The sums are those of
`moments`, one more axis in front; a tensor for which float32 does not suffice is reduced by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sigprop.measure import float32_sums
from sigprop.measure.moments import Moments

LARGEST = 1 << 18
"""Entries of a tensor that waits."""
ROOM = 1 << 21
"""Entries of a buffer, about."""
MOST = 32
"""Tensors of a buffer."""


@dataclass
class Shelf:
    """Tensors of one shape, signals or gradients, that wait."""

    buffer: Tensor
    mask: Tensor | None
    signal: bool
    tickets: list[int] = field(default_factory=list)


class WaitingRoom:
    """`add` gives back the tickets and moments that a full buffer brings, `rest` those of all others."""

    def __init__(self, moments: Moments):
        self._moments = moments
        self._shelves: dict[tuple, Shelf] = {}

    def takes(self, x: Tensor) -> bool:
        return x.numel() <= LARGEST and self._moments.is_quick(x) and x.shape[1] > 1

    def add(self, ticket: int, x: Tensor, mask: Tensor | None, signal: bool) -> list[tuple[int, list[float]]]:
        key = (x.shape, id(mask), signal)
        shelf = self._shelves.get(key)
        if shelf is None:
            count = max(2, min(MOST, ROOM // max(x.numel(), 1)))
            shelf = self._shelves[key] = Shelf(x.new_empty((count, *x.shape)), mask, signal)
        shelf.buffer[len(shelf.tickets)].copy_(x)
        shelf.tickets.append(ticket)
        return self._emptied(shelf) if len(shelf.tickets) == len(shelf.buffer) else []

    def rest(self, signal: bool) -> list[tuple[int, list[float]]]:
        return [row for shelf in self._shelves.values() if shelf.signal == signal for row in self._emptied(shelf)]

    def _emptied(self, shelf: Shelf) -> list[tuple[int, list[float]]]:
        tickets, shelf.tickets = shelf.tickets, []
        if not tickets:
            return []
        tensors = shelf.buffer[: len(tickets)]
        reduce = self._moments.signal if shelf.signal else self._moments.gradient
        table, sure = _reduced(tensors, shelf.mask, shelf.signal)
        for place in (~sure).nonzero().flatten().tolist():
            table[place] = reduce(tensors[place], shelf.mask)
        return list(zip(tickets, table.tolist(), strict=True))


def _reduced(x: Tensor, mask: Tensor | None, signal: bool) -> tuple[Tensor, Tensor]:
    """Rows of mean, variance (or mean square) and token correlation, and which of them float32 is good enough for."""
    count, sequences, tokens, channels = x.shape
    rows = x.view(count * sequences, tokens, channels)
    squares = float32_sums.token_squares(rows).view(count, sequences, tokens)
    longest = squares.amax((1, 2)) / channels
    sure = (longest >= float32_sums.SMALLEST) & (longest <= float32_sums.LARGEST)
    sums = torch.zeros_like(squares)
    if signal:
        sums = float32_sums.token_sums_alone(rows).view(count, sequences, tokens)
    if mask is not None:
        sums, squares = sums * mask, squares * mask
    entries = float(x[0].numel()) if mask is None else mask.sum().double() * channels
    mean = (sums.sum((1, 2)) / entries)[:, None, None]
    second = (squares.sum((1, 2)) / entries)[:, None, None]
    shift = channels * mean.square()
    variance, distance = (second - mean.square()).clamp_min(0.0), squares - 2.0 * mean * sums + shift
    floor = float32_sums.ROUNDING * distance.amax((1, 2), keepdim=True)
    if signal:
        sure &= (mean.square() <= 4.0 * variance).flatten()
        sure &= (distance >= 1e-3 * (squares + shift)).all(-1).all(-1)
        floor = torch.maximum(1e-13 * (squares + shift), floor)
    weights = torch.where(distance <= floor, 0.0, distance.rsqrt())
    weights = weights if mask is None else weights * mask
    total = float32_sums.unit_sum(rows, weights.view(-1, tokens)).view(count, sequences, channels)
    total = total - mean * weights.sum(2, keepdim=True)
    number = (weights != 0).sum(2).double()
    pairs = number * (number - 1.0)
    cosine = torch.where(pairs > 0, (total.square().sum(2) - number) / pairs, 0.0).sum(1) / (pairs > 0).sum(1)
    sure &= cosine.isfinite()
    return torch.stack((mean.flatten(), variance.flatten(), cosine), 1), sure
