"""A pass: of many heads a part is drawn, since a wide model's heads are alike.

Head axes keep one in `factor` of their entries, from the sources on. What is left of several replicas is replayed at
once, one replica after the other along the head axis. Views are replayed by their layouts instead of by the sizes they
were called with; a call that names the full number of heads cannot be thinned.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.layout import Axis, Layout
from sigprop.capture.record import Field, Record
from sigprop.capture.replay import Replay

SIZED_VIEWS = ("view", "reshape", "flatten", "unflatten", "expand")


def possible_thinning(query: Layout, key: Layout, wanted: int, replicas: int, drawn: list[Layout]) -> Thinning | None:
    """Thin the heads of queries and keys alike, down to about `wanted`, and join replicas where heads come first in all
    that is drawn; None when neither is possible."""
    mine, theirs = query.dims[-3] if len(query.dims) > 2 else (), key.dims[-3] if len(key.dims) > 2 else ()
    if len(mine) != 1 or len(theirs) > 1 or any(axis.is_position for axis in (*mine, *theirs)):
        return None
    common = math.gcd(mine[0].size, theirs[0].size if theirs else mine[0].size)
    factors = [n for n in range(1, common + 1) if common % n == 0 and mine[0].size // n >= wanted]
    made = Thinning([*mine, *theirs], max(factors, default=1), replicas)
    if any(made.place(layout) is None for layout in drawn):
        made = made.single
    return made if made.factor > 1 or made.replicas > 1 else None


class Thinning:
    """Which axes are thinned, and layouts with the sizes that are left in `replicas` replicas."""

    def __init__(self, heads: list[Axis], factor: int, replicas: int = 1):
        self.factor = factor
        self.heads = heads
        self.replicas = replicas
        self.single = self if replicas == 1 else Thinning(heads, factor)
        self._axes: dict[Axis, Axis] = {}
        self._layouts: dict[Layout, Layout] = {}

    def axis(self, axis: Axis) -> Axis:
        if axis not in self._axes:
            size = self._size(axis)
            self._axes[axis] = axis if size == axis.size else Axis(size, axis.role)
        return self._axes[axis]

    def _size(self, axis: Axis) -> int:
        if axis in self.heads:
            return axis.size // self.factor * self.replicas
        for parts in axis.splits.values():
            sizes = [self.axis(part).size for part in parts]
            if sizes != [part.size for part in parts]:
                return math.prod(sizes)
        return axis.size

    def layout(self, layout: Layout) -> Layout:
        if layout not in self._layouts:
            dims = tuple(tuple(self.axis(axis) for axis in dim) for dim in layout.dims)
            self._layouts[layout] = Layout(dims, tuple(self.axis(axis) for axis in layout.order))
        return self._layouts[layout]

    def place(self, layout: Layout) -> int | None:
        """The dimension along which replicas follow each other: that in which heads come first."""
        return next((place for place, dim in enumerate(layout.dims) if dim and self._leads(dim[0])), None)

    def _leads(self, axis: Axis) -> bool:
        return axis in self.heads or any(self._leads(parts[0]) for parts in axis.splits.values())


class ThinReplay(Replay):
    """A replay on thinned layouts, of all replicas of its ensemble at once."""

    def __init__(self, thinning: Thinning, *args: Any):
        super().__init__(*args)
        self.thinning = thinning
        self.replicas = slice(self.replicas.start, self.replicas.start + thinning.replicas)
        self.weight_share = 1.0 / thinning.factor

    def layout(self, item: Field) -> Layout:
        return self.thinning.single.layout(item.layout)

    def heads_left_out(self, item: Field) -> float:
        """Of one that all heads share: a key of all queries, or a part of all keys."""
        return self.thinning.factor if self.layout(item).channels == item.layout.channels else 1.0

    def from_rows(self, item: Field, rows: Tensor) -> Tensor:
        place = self.thinning.place(item.layout) or 0
        return self.layout(item).from_rows(rows).movedim(0, place).flatten(place, place + 1)

    def to_rows(self, item: Field, values: Tensor) -> Tensor:
        place = self.thinning.place(item.layout) or 0
        return self.layout(item).to_rows(values.unflatten(place, (self.thinning.replicas, -1)).movedim(place, 0))

    def _call(self, record: Record) -> Tensor:
        call = record.call
        if call is not None and call.name in SIZED_VIEWS and isinstance(record, Field):
            source: Any = self.values[record.inputs[0]]
            shape = self.thinning.layout(record.layout).shape
            with torch.set_grad_enabled(self.gradients):
                return source.expand(shape) if call.name == "expand" else source.reshape(shape)
        return super()._call(record)
