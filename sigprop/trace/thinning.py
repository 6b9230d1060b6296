"""Thinned replays: a wide model's heads are alike, so a part of them is enough.

Head axes keep one in `factor` of their entries, from the sources on. Views are replayed by their layouts instead of
by the sizes they were called with; a call that names the full number of heads cannot be thinned.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sigprop.trace.layout import Axis, Layout
from sigprop.trace.record import Field, Record
from sigprop.trace.replay import Replay

SIZED_VIEWS = ("view", "reshape", "flatten", "unflatten", "expand")


class Thinning:
    """Which axes are thinned, and layouts with the sizes that are left."""

    def __init__(self, heads: list[Axis], factor: int):
        self.factor = factor
        self.heads = heads
        self._axes: dict[Axis, Axis] = {}

    def axis(self, axis: Axis) -> Axis:
        if axis not in self._axes:
            size = self._size(axis)
            self._axes[axis] = axis if size == axis.size else Axis(size, axis.role)
        return self._axes[axis]

    def _size(self, axis: Axis) -> int:
        if axis in self.heads:
            return axis.size // self.factor
        for parts in axis.splits.values():
            sizes = [self.axis(part).size for part in parts]
            if sizes != [part.size for part in parts]:
                return math.prod(sizes)
        return axis.size

    def layout(self, layout: Layout) -> Layout:
        dims = tuple(tuple(self.axis(axis) for axis in dim) for dim in layout.dims)
        return Layout(dims, tuple(self.axis(axis) for axis in layout.order))


class ThinReplay(Replay):
    """A replay on thinned layouts."""

    def __init__(self, thinning: Thinning, *args: Any):
        super().__init__(*args)
        self.thinning = thinning

    def layout(self, item: Field) -> Layout:
        return self.thinning.layout(item.layout)

    def _call(self, record: Record) -> Tensor:
        call = record.call
        if call is not None and call.name in SIZED_VIEWS and isinstance(record, Field):
            source: Any = self.values[record.inputs[0]]
            shape = self.layout(record).shape
            with torch.set_grad_enabled(self.gradients):
                return source.expand(shape) if call.name == "expand" else source.reshape(shape)
        return super()._call(record)


def possible_thinning(query: Layout, key: Layout, wanted: int) -> Thinning | None:
    """Thin the heads of queries and keys alike, down to about `wanted`; None when there are no more than that."""
    mine, theirs = query.dims[-3] if len(query.dims) > 2 else (), key.dims[-3] if len(key.dims) > 2 else ()
    if len(mine) != 1 or len(theirs) > 1 or any(axis.is_position for axis in (*mine, *theirs)):
        return None
    common = math.gcd(mine[0].size, theirs[0].size if theirs else mine[0].size)
    factors = [n for n in range(1, common + 1) if common % n == 0 and mine[0].size // n >= wanted]
    factor = max(factors, default=1)
    return Thinning([*mine, *theirs], factor) if factor > 1 else None
