"""Bringing tensors of different kinds to one layout: broadcasting with roles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.theory import Dense, Node, Signal
from sigprop.theory.ops.gather import Gather
from sigprop.theory.ops.parameter_source import ParameterSource
from sigprop.theory.parts import GIVEN
from sigprop.trace.layout import (
    BATCH,
    CHANNEL,
    KEY,
    TOKEN,
    Axis,
    Dim,
    Layout,
    Misaligned,
    common_sizes,
    cut,
    leading_positions,
)
from sigprop.trace.record import Call, Field, Weight, mapped

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

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


def aligned(capture: Capture, item: Field, result: Layout, own: Layout) -> Node:
    """The node of a field, read in the positions of a result it is broadcast to."""
    index = positions_of(result, own)
    copies = result.channels / own.channels
    if copies == 1.0 and torch.equal(index, torch.arange(own.positions)):
        return item.node
    return capture.apply(Gather(index, copies, result.channels), item.node)


def concrete_rows(value: Tensor | float, layout: Layout) -> Tensor:
    """Fixed numbers spread over a layout: `[positions, channels]`, float64."""
    numbers = torch.as_tensor(value, dtype=torch.float64).expand(layout.shape)
    return layout.to_rows(numbers)


def concrete_kernel(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Second moments over pairs of positions, and the mean, averaged over channels."""
    return rows @ rows.T / rows.shape[1], rows.mean(1)


def as_constant(value: Any) -> float | None:
    """The number that a scalar, or a tensor with all entries equal, stands for."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, Tensor) and not value.is_meta and value.numel():
        first = value.flatten()[0]
        if value.numel() == 1 or bool((value == first).all()):
            return float(first)
    return None


def entry_labels(weight: Weight) -> Tensor | None:
    """Which entry of its parameter each entry of a weight is; None when it is not a rearrangement of one."""
    if weight.call is None:
        return torch.arange(math.prod(weight.shape)).reshape(weight.shape)
    if len(weight.parents) != 1:
        return None
    parent = weight.parents[0][0]
    if parent not in weight.call.records():
        return None
    labels = entry_labels(parent)
    if labels is None:
        return None
    if labels.shape == torch.Size(weight.shape) and _is_pointwise(weight.call):
        return labels
    try:
        result = _on_labels(weight.call, parent, labels)
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None
    return result if weight.output is None else result[weight.output]


def _is_pointwise(call: Call) -> bool:
    return call.name in ("add", "mul", "sub", "div", "neg", "exp", "sigmoid", "to", "float", "tanh", "softplus", "pow")


def _on_labels(call: Call, parent: Weight, labels: Tensor) -> Any:
    args, kwargs = mapped((call.args, call.kwargs), lambda item: labels if item is parent else item)
    return call.function(*args, **kwargs)


def weight_sharing(weight: Weight, layout: Layout) -> Tensor:
    """`same[p,p']`: whether two positions of a layout read the same entries of a weight broadcast to it."""
    labels = entry_labels(weight)
    if labels is None:
        labels = torch.arange(math.prod(weight.shape)).reshape(weight.shape)
    rows = layout.to_rows(labels.expand(layout.shape))[:, 0]
    return (rows[:, None] == rows).double()


def weight_field(capture: Capture, weight: Weight, layout: Layout | None = None) -> Field:
    """A weight as a tensor of the network, with its own layout or one broadcast from another operand."""
    layout = leading_positions(weight.shape) if layout is None else layout
    distribution = weight.distribution
    op = ParameterSource(
        distribution.variance, distribution.mean, weight_sharing(weight, layout), weight.shape, layout.channels
    )

    def make(_: Field) -> Node:
        return capture.apply(op, weights={"weight": (weight, math.prod(weight.shape))})

    return Field(layout, make, call=weight.call, inputs=(weight,))


def concrete_field(capture: Capture, value: Tensor, layout: Layout | None = None) -> Field:
    """Real numbers (pixels, features) as a tensor of the network."""
    layout = leading_positions(value.shape) if layout is None else layout
    kernel, mean = concrete_kernel(concrete_rows(value, layout))
    node = capture.source(Signal(Dense(kernel), mean, layout.channels, GIVEN))
    return Field(layout, lambda _: node)
