"""Bringing tensors of different kinds to one layout: broadcasting with roles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.layout import BATCH, CHANNEL, KEY, TOKEN, Axis, Dim, Layout, Misaligned, common_sizes, cut

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
        dim = tuple(second_axis(axis) if axis in seen else axis for axis in dim)
        dims.append(dim)
        extra += [axis for axis in dim if axis.is_position and axis not in main.order]
    return Layout(tuple(dims), main.order + tuple(extra)), padded


def second_axis(axis: Axis) -> Axis:
    """The axis of a tensor that meets itself in another dimension: pairs of tokens, or an outer product."""
    return Axis(axis.size, KEY if axis.is_position else axis.role)


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
    inside = [axis for dim in dims for axis in dim if axis.is_position]
    order = [axis for axis in model.order if axis in inside]
    return Layout(tuple(dims), tuple(order + [axis for axis in inside if axis not in order]))


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
    strides, step = {}, 1
    for axis in reversed(operand.order):
        strides[axis] = step
        step *= axis.size
    place_of = {
        own: axis
        for dim, wide in zip(operand.dims, result.dims, strict=True)
        for own, axis in zip(dim, wide, strict=False)
    }
    index = torch.zeros([axis.size for axis in result.order], dtype=torch.long)
    for own, stride in strides.items():
        axis = place_of[own]
        shape = [-1 if other is axis else 1 for other in result.order]
        index = index + stride * torch.arange(axis.size).reshape(shape)
    return index.expand([axis.size for axis in result.order]).flatten()


def concrete_rows(value: Tensor | float, layout: Layout) -> Tensor:
    """Fixed numbers spread over a layout: `[positions, channels]`, float64."""
    numbers = torch.as_tensor(value, dtype=torch.float64).expand(layout.shape)
    return layout.to_rows(numbers)


def concrete_kernel(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Second moments over pairs of positions, and the mean, averaged over channels."""
    return rows @ rows.T / rows.shape[1], rows.mean(1)


def as_constant(value: Any, beside: Any) -> float | None:
    """The number that a scalar, or a tensor with all entries equal, stands for beside another operand.

    A tensor that makes the other larger is more than a number.
    """
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, Tensor) and not value.is_meta and value.numel():
        if value.numel() > 1 and hasattr(beside, "shape") and _is_enlarged(beside.shape, value.shape):
            return None
        first = value.flatten()[0]
        if value.numel() == 1 or bool((value == first).all()):
            return float(first)
    return None


def _is_enlarged(shape: Sequence[int], other: Sequence[int]) -> bool:
    return torch.broadcast_shapes(tuple(shape), tuple(other)) != tuple(shape)
