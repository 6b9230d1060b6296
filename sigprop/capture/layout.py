"""Axis roles: what each dimension of a tensor is made of, followed through every view.

A dimension is a tuple of axes; an axis has a size and a role. `batch` and `token` axes are *positions*: the kernel has
one row for each. `channel` axes (heads and head widths among them) are what the kernel averages over. `key` axes are
the second token axis of attention weights. A dimension of size one has no axes. Views only regroup, split and reorder
axes, so the kernel of a view is the kernel of its source. `order` is the order in which the kernel numbers positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

BATCH, TOKEN, CHANNEL, KEY = "batch", "token", "channel", "key"
LARGEST = 8192  # positions of which all pairs are followed


@dataclass(frozen=True, eq=False)
class Axis:
    """One factor of a dimension; compared by identity. Splitting twice the same way gives the same axes."""

    size: int
    role: str
    splits: dict[tuple[int, ...], tuple[Axis, ...]] = field(default_factory=dict, repr=False)

    @property
    def is_position(self) -> bool:
        return self.role in (BATCH, TOKEN)

    def split(self, sizes: tuple[int, ...]) -> tuple[Axis, ...]:
        if sizes not in self.splits:
            self.splits[sizes] = tuple(Axis(n, self.role) for n in sizes)
        return self.splits[sizes]

    def __repr__(self) -> str:
        return f"{self.role[0]}{self.size}"


Dim = tuple[Axis, ...]


class Misaligned(Exception):
    """A view cuts across axes: the caller must find another way."""


@dataclass(frozen=True)
class Layout:
    """Axes of each dimension, and the order of positions in the kernel."""

    dims: tuple[Dim, ...]
    order: tuple[Axis, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(size(dim) for dim in self.dims)

    @cached_property
    def positions(self) -> int:
        return math.prod(axis.size for axis in self.order)

    @property
    def sequences(self) -> int:
        return math.prod(axis.size for axis in self.order if axis.role == BATCH)

    @cached_property
    def channels(self) -> int:
        return math.prod(axis.size for dim in self.dims for axis in dim if not axis.is_position)

    def permuted(self, order: Sequence[int]) -> Layout:
        return Layout(tuple(self.dims[index] for index in order), self.order)

    def inserted(self, place: int) -> Layout:
        dims = list(self.dims)
        dims.insert(place, ())
        return Layout(tuple(dims), self.order)

    def reshaped(self, shape: Sequence[int]) -> Layout:
        """Regroup the axes into dimensions of the given sizes, splitting axes where needed."""
        waiting = [axis for dim in self.dims for axis in dim][::-1]
        order, dims = list(self.order), []
        for wanted in shape:
            dim: list[Axis] = []
            missing = wanted
            while missing > 1:
                if not waiting:
                    raise Misaligned(f"{self} as {tuple(shape)}")
                axis = waiting.pop()
                if missing % axis.size == 0:
                    dim.append(axis)
                    missing //= axis.size
                elif axis.size % missing == 0:
                    front, back = axis.split((missing, axis.size // missing))
                    if axis in order:
                        place = order.index(axis)
                        order[place : place + 1] = [front, back]
                    dim.append(front)
                    waiting.append(back)
                    missing = 1
                else:
                    raise Misaligned(f"{self} as {tuple(shape)}")
            dims.append(tuple(dim))
        if any(axis.size > 1 for axis in waiting):
            raise Misaligned(f"{self} as {tuple(shape)}")
        return Layout(tuple(dims), tuple(order))

    def index(self) -> Tensor:
        """Kernel row of every entry: integers of the tensor's shape, channel axes broadcast to one."""
        rows = torch.arange(self.positions).reshape([axis.size for axis in self.order] or [1])
        inside = [axis for dim in self.dims for axis in dim if axis.is_position]
        rows = rows.reshape([axis.size for axis in self.order]).permute([self.order.index(axis) for axis in inside])
        return rows.reshape([math.prod(axis.size for axis in dim if axis.is_position) for dim in self.dims])

    def labels(self) -> Tensor:
        """Kernel row of every entry, at the tensor's full shape."""
        return self.from_rows(torch.arange(self.positions)[:, None].expand(-1, self.channels))

    def to_rows(self, values: Tensor) -> Tensor:
        """A tensor of this shape as `[positions, channels]`, in the kernel's order."""
        flat = [axis for dim in self.dims for axis in dim]
        places = [flat.index(axis) for axis in self.order]
        places += [place for place, axis in enumerate(flat) if not axis.is_position]
        return values.reshape([axis.size for axis in flat]).permute(places).reshape(self.positions, -1)

    def from_rows(self, rows: Tensor) -> Tensor:
        """The inverse of `to_rows`."""
        flat = [axis for dim in self.dims for axis in dim]
        channels = [axis for axis in flat if not axis.is_position]
        ordered = [*self.order, *channels]
        values = rows.reshape([axis.size for axis in ordered]).permute([ordered.index(axis) for axis in flat])
        return values.reshape(self.shape)


def size(dim: Dim) -> int:
    return dim[0].size if len(dim) == 1 else math.prod(axis.size for axis in dim)


def of_roles(shape: Sequence[int], roles: Sequence[str]) -> Layout:
    """One fresh axis for each dimension larger than one."""
    dims = tuple((Axis(n, role),) if n > 1 else () for n, role in zip(shape, roles, strict=True))
    return Layout(dims, tuple(axis for dim in dims for axis in dim if axis.is_position))


def leading_positions(shape: Sequence[int], channels: int = 1) -> Layout:
    """Batch first, then tokens, the last `channels` dimensions channels; two dimensions have no tokens."""
    front = len(shape) - channels
    roles = [BATCH] * min(front, 1) + [TOKEN] * max(front - 1, 0)
    return of_roles(shape, roles + [CHANNEL] * (len(shape) - len(roles)))


def refined(dim: Dim, sizes: Sequence[int]) -> list[Dim]:
    """Each axis of a dimension cut into pieces so that the running sizes match `sizes`: pieces per axis."""
    left, pieces = list(sizes), []
    for axis in dim:
        own, remaining = [], axis.size
        while remaining > 1:
            step = left.pop(0)
            if remaining % step:
                raise Misaligned(f"{dim} cut as {tuple(sizes)}")
            own.append(step)
            remaining //= step
        pieces.append((axis,) if own == [axis.size] else axis.split(tuple(own)))
    return pieces


def common_sizes(first: Dim, second: Dim) -> list[int]:
    """Sizes of the coarsest cut that refines two dimensions of equal size."""

    def cuts(dim: Dim) -> set[int]:
        total, found = 1, set()
        for axis in reversed(dim):
            total *= axis.size
            found.add(total)
        return found

    marks = sorted(cuts(first) | cuts(second))
    sizes, before = [], 1
    for mark in marks:
        if mark % before:
            raise Misaligned(f"{first} against {second}")
        sizes.append(mark // before)
        before = mark
    return [n for n in reversed(sizes) if n > 1]


def cut(layout: Layout, place: int, sizes: Sequence[int]) -> Layout:
    """The layout with one dimension's axes refined to the given sizes."""
    pieces = refined(layout.dims[place], sizes)
    replacement = dict(zip(layout.dims[place], pieces, strict=True))
    dims = list(layout.dims)
    dims[place] = tuple(piece for parts in pieces for piece in parts)
    order = tuple(piece for axis in layout.order for piece in replacement.get(axis, (axis,)))
    return Layout(tuple(dims), order)
