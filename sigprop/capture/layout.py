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
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.noise import NOISE, expected

BATCH, TOKEN, CHANNEL, KEY = "batch", "token", "channel", "key"
LARGEST = 8192  # positions of which all pairs are followed
PAIRS = 1024  # pairs of tokens with channels of their own that are followed as positions: more take gigabytes


@dataclass(frozen=True, eq=False)
class Axis:
    """One factor of a dimension; compared by identity. Splitting twice the same way gives the same axes."""

    size: int
    role: str
    splits: dict[tuple[int, ...], tuple[Axis, ...]] = field(default_factory=dict, repr=False)
    is_position: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_position", self.role in (BATCH, TOKEN))

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

    @cached_property
    def has_keys(self) -> bool:
        """Scores and attention weights: one number for each pair of positions."""
        return any(axis.role == KEY for dim in self.dims for axis in dim)

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

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Sizes of all axes as they stand, and where those that count positions, in the kernel's order, and the others
        are."""
        flat = [axis for dim in self.dims for axis in dim]
        places = [flat.index(axis) for axis in self.order]
        places += [place for place, axis in enumerate(flat) if not axis.is_position]
        return [axis.size for axis in flat], places

    def to_rows(self, values: Tensor) -> Tensor:
        """A tensor of this shape as `[positions, channels]`, in the kernel's order; or a stack of such."""
        (sizes, places), stack = self._places, values.shape[: values.dim() - len(self.dims)]
        more = list(range(len(stack)))
        found = values.reshape([*stack, *sizes]).permute([*more, *(len(more) + place for place in places)])
        return found.reshape(*stack, self.positions, -1)

    def from_rows(self, rows: Tensor) -> Tensor:
        """The inverse of `to_rows`."""
        (sizes, places), stack = self._places, rows.shape[:-2]
        more, back = list(range(len(stack))), sorted(range(len(places)), key=places.__getitem__)
        found = rows.reshape([*stack, *(sizes[place] for place in places)])
        return found.permute([*more, *(len(more) + place for place in back)]).reshape(*stack, *self.shape)


def size(dim: Dim) -> int:
    return dim[0].size if len(dim) == 1 else math.prod(axis.size for axis in dim)


def fresh(size: int, role: str) -> Dim:
    """A dimension with an axis of its own."""
    return (Axis(size, role),) if size > 1 else ()


def resized(old: Dim, size: int, role: str = CHANNEL) -> Dim:
    """A dimension of another size in the role of one, or in `role` where that has no axes."""
    return fresh(size, old[0].role if old else role)


def arranged(dims: Sequence[Dim], first: Sequence[Axis] = ()) -> Layout:
    """Dimensions whose positions are numbered as they stand, those in `first` in that order before all others."""
    inside = [axis for dim in dims for axis in dim if axis.is_position]
    before = [axis for axis in first if axis in inside]
    return Layout(tuple(dims), (*before, *(axis for axis in inside if axis not in before)))


def of_roles(shape: Sequence[int], roles: Sequence[str]) -> Layout:
    """One fresh axis for each dimension larger than one."""
    return arranged([fresh(n, role) for n, role in zip(shape, roles, strict=True)])


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


# -- Bringing tensors of different kinds to one layout: broadcasting with roles


STREAMS = 16


def common_layout(layouts: Sequence[Layout]) -> tuple[Layout, list[Layout]]:
    """The layout of an elementwise result, and each operand's layout cut to the same axes, dimension by dimension."""
    rank = max(len(layout.dims) for layout in layouts)
    padded = [Layout(((),) * (rank - len(layout.dims)) + layout.dims, layout.order) for layout in layouts]
    for place in range(rank):
        whole = [layout.dims[place] for layout in padded if layout.dims[place]]
        for other in whole[1:]:
            sizes = common_sizes(whole[0], other)
            padded = [cut(item, place, sizes) if item.dims[place] else item for item in padded]
            whole = [item.dims[place] for item in padded if item.dims[place]]
    main = max(padded, key=lambda layout: layout.positions)
    dims, extra = [], []
    for place in range(rank):
        candidates = [item.dims[place] for item in padded if item.dims[place]]
        dim = main.dims[place] or _preferred(candidates)
        for axes in zip(*candidates, strict=True) if candidates else ():
            if len({axis.is_position for axis in axes}) > 1:
                raise Misaligned("a position meets a channel")
        seen = [axis for earlier in dims for axis in earlier]
        pairs = TOKEN if main.channels > STREAMS and main.positions * size(dim) <= PAIRS else KEY
        dim = tuple(second_axis(axis, pairs) if axis in seen else axis for axis in dim)
        dims.append(dim)
        extra += [axis for axis in dim if axis.is_position and axis not in main.order]
    return Layout(tuple(dims), main.order + tuple(extra)), padded


def second_axis(axis: Axis, pairs: str = KEY) -> Axis:
    """The axis of a tensor that meets itself in another dimension: pairs of tokens, or an outer product."""
    return Axis(axis.size, pairs if axis.is_position else axis.role)


def layout_like(model: Layout, shape: tuple[int, ...]) -> Layout:
    """Roles of a real tensor or weight that meets a field: those of the dimensions it is aligned with."""
    dims: list = []
    for back, n in enumerate(reversed(shape)):
        place = len(model.dims) - 1 - back
        like = model.dims[place] if place >= 0 else ()
        if n == 1:
            dims.append(())
        elif like:
            dims.append(like)
        else:
            known = any(a.role == BATCH for a in model.order)
            role = CHANNEL if back == 0 else (TOKEN if known or place > 0 else BATCH)
            dims.append((Axis(n, role),))
    dims.reverse()
    return arranged(dims, model.order)


def with_streams(layout: Layout, places: Sequence[int]) -> Layout:
    """The layout with the channels of some dimensions followed one by one, as positions.

    In an outer product the entries along one factor share the other: few of them, such as residual streams side by
    side, are followed each by itself instead of averaged over as independent channels.
    """
    dims, added = list(layout.dims), []
    for place in places:
        dims[place] = tuple(Axis(a.size, TOKEN) if a.role == CHANNEL else a for a in dims[place])
        added += [axis for axis in dims[place] if axis not in layout.dims[place]]
    return Layout(tuple(dims), layout.order + tuple(added))


def are_streams(dim: Dim) -> bool:
    """Channels few enough to be followed one by one."""
    return bool(dim) and all(axis.role == CHANNEL for axis in dim) and math.prod(a.size for a in dim) <= STREAMS


def outer_streams(layout: Layout, first: Layout, second: Layout) -> list[int]:
    """Dimensions with few channels of one operand, where the other has channels of its own elsewhere."""
    wide = [p for p, dim in enumerate(layout.dims) if any(axis.role == CHANNEL for axis in dim)]
    mine, theirs = ([p for p in wide if not other.dims[p]] for other in (second, first))
    if not mine or not theirs:
        return []
    few = [p for p in wide if are_streams(layout.dims[p])]
    return [p for p in mine if p in few] or [p for p in theirs if p in few]


def _preferred(candidates: list[Dim]) -> Dim:
    for role in (BATCH, TOKEN):
        for dim in candidates:
            if any(axis.role == role for axis in dim):
                return dim
    return candidates[0] if candidates else ()


def positions_of(result: Layout, operand: Layout) -> Tensor:
    """For each position of the result, the operand's position that it reads."""
    rows = result.index()
    index = torch.empty(result.positions, dtype=torch.long)
    index[rows.flatten()] = operand.index().expand(rows.shape).flatten()
    return index


def places_along(order: Sequence[Axis], axes: Sequence[Axis]) -> Tensor:
    """For each position where it is along some of the axes."""
    index = torch.zeros([axis.size for axis in order] or [1], dtype=torch.long)
    for axis in (axis for axis in order if axis in axes):
        shape = [-1 if other is axis else 1 for other in order]
        index = index * axis.size + torch.arange(axis.size).reshape(shape)
    return index.flatten()


def concrete_rows(value: Tensor | float, layout: Layout) -> Tensor:
    """Fixed numbers spread over a layout: `[positions, channels]`, float64."""
    numbers = torch.as_tensor(value, dtype=torch.float64).detach().expand(layout.shape)
    return layout.to_rows(numbers)


def concrete_kernel(value: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Second moments over pairs of positions, and the mean, averaged over channels; those that repeat one, as rotations
    do over heads, are that one. Of noise the expected ones."""
    shape = (1,) * (len(layout.dims) - value.dim()) + tuple(value.shape)
    dims = [
        () if n == 1 and not any(axis.is_position for axis in dim) else dim
        for n, dim in zip(shape, layout.dims, strict=True)
    ]
    own = Layout(tuple(dims), layout.order)
    if (way := getattr(value, NOISE, None)) is not None:
        return expected(way, lambda numbers: concrete_rows(numbers, own))
    rows = concrete_rows(value, own)
    return rows @ rows.T / rows.shape[1], rows.mean(1)


def as_constant(value: Any, beside: Any) -> float | None:
    """The number that a scalar, or a tensor with all entries equal, stands for beside another operand.

    A tensor that makes the other larger is more than a number.
    """
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, Tensor) and not value.is_meta and value.numel():
        shape = tuple(getattr(beside, "shape", ()))
        if value.numel() > 1 and hasattr(beside, "shape") and torch.broadcast_shapes(shape, value.shape) != shape:
            return None
        first = value.flatten()[0]
        if value.numel() == 1 or bool((value == first).all()):
            return float(first.detach())
    return None
