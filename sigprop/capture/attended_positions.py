"""Which positions an attention joins: the output position of every query, the value position of every key."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.capture.layout import BATCH, Layout


def attended(weight: Layout, value: Layout, out: Layout) -> tuple[Tensor, Tensor | None]:
    """Output position of every query row and value position of every key column; None when they are all in order.

    Dimensions before the last two are shared by weights, values and output.
    """
    queries = out.index().flatten()
    flat = [axis for dim in weight.dims for axis in dim if axis.is_position]
    if not any(axis.role == BATCH or axis.size > 1 for dim in weight.dims[:-2] for axis in dim if axis.is_position):
        straight = torch.arange(value.positions)
        keys = value.index().flatten()
        if torch.equal(queries, torch.arange(out.positions)) and torch.equal(keys, straight):
            return queries, None
        return queries, keys[None, :].expand(len(queries), -1)
    shared = math.prod(axis.size for dim in weight.dims[:-2] for axis in dim if axis.is_position)
    index = value.index()
    keys = index.expand(*[max(a, b) for a, b in zip(index.shape, _position_shape(weight, value), strict=True)])
    keys = keys.reshape(shared, -1)
    per_query = len(queries) // shared
    assert flat
    return queries, keys.repeat_interleave(per_query, 0)


def _position_shape(weight: Layout, value: Layout) -> list[int]:
    """Position sizes of the shared dimensions, then those of the value's own."""

    def positions(layout: Layout) -> list[int]:
        return [math.prod(a.size for a in dim if a.is_position) for dim in layout.dims]

    return positions(weight)[:-2] + positions(value)[-2:]
