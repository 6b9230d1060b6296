"""Fixed linear maps of the positions of each channel, and maxima over them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.layout import CHANNEL, TOKEN, Axis, Layout, Misaligned, arranged, fresh, resized
from sigprop.capture.record import Call, Field, on_meta, result_shape
from sigprop.capture.rules.convolution import image_windows
from sigprop.capture.rules.replayed import replayed
from sigprop.capture.rules.views import moved, viewed
from sigprop.graph.graph import Node
from sigprop.theory.ops.positions_to_channels import PositionsToChannels
from sigprop.theory.ops.scale import Scale
from sigprop.theory.ops.token_map import TokenMap

PADS = ("pad", "constant_pad_nd")


@rule(
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "interpolate",
    "upsample",
    *PADS,
)
def linear_map(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A fixed linear function of the last dimensions: its matrix is read off its action on unit images."""
    if not isinstance(input, Field):
        return replayed(capture, call)
    shape = result_shape(call)
    changed = [d for d, (n, m) in enumerate(zip(input.shape, shape, strict=True)) if n != m]
    if call.name in PADS:
        changed = _padded(call, len(shape))
        if changed and _is_shift(call, input, changed):
            return _shifted(capture, call, input, shape)
    first = min(changed, default=len(shape))
    if call.name.startswith("avg_pool"):
        first = len(shape) - int(call.name[-2])
    if first == len(shape):  # the same numbers, and a gradient of their own
        return capture.field_of(Scale(1.0), input, input.layout, call)
    axes = [axis for dim in input.layout.dims[first:] for axis in dim]
    if any(not axis.is_position for axis in axes):
        return _channel_pad(capture, call, input, shape, first)
    first = 2 if call.name not in PADS and len(shape) > 2 else first
    layout = _spatial(input.layout, shape, first)
    rows = _unit_response(call, input, first, shape)

    def make(_: Field) -> Node:
        return capture.apply(TokenMap(_lifted(rows, input.layout, layout, first)), input.node)

    return Field(layout, make, sources=input.sources, call=call, inputs=(input,))


def _padded(call: Call, rank: int) -> list[int]:
    """Dimensions that a padding adds to or cuts from."""
    amounts = _amounts(call)
    pairs = [amounts[place : place + 2] for place in range(0, len(amounts), 2)]
    return sorted(rank - 1 - place for place, pair in enumerate(pairs) if any(pair))


def _amounts(call: Call) -> list[int]:
    return list(call.kwargs.get("pad", call.args[1] if len(call.args) > 1 else ()))


def _is_shift(call: Call, x: Field, changed: list[int]) -> bool:
    """Zeros beside positions, or positions cut: a rearrangement of whole tokens."""
    mode = call.kwargs.get("mode", call.args[2] if len(call.args) > 2 else "constant")
    value = call.kwargs.get("value", call.args[3] if len(call.args) > 3 else 0.0)
    over_positions = all(axis.is_position for place in changed for axis in x.layout.dims[place])
    return mode in ("constant", None) and not value and over_positions and all(x.layout.dims[p] for p in changed)


def _shifted(capture: Capture, call: Call, x: Field, shape: tuple[int, ...]) -> Field:
    """Positions moved along, as in a token shift `pad(x, (0, 0, 1, -1))`; those that enter are zero."""
    sizes = zip(x.layout.dims, x.shape, shape, strict=True)
    dims = tuple(dim if size == old else resized(dim, size) for dim, old, size in sizes)
    kept = {axis for dim in dims for axis in dim}
    layout = arranged(dims, x.layout.order if kept.issuperset(x.layout.order) else ())
    source = torch.nn.functional.pad(x.layout.index(), _amounts(call), value=-1)
    matrix = torch.zeros(layout.positions, x.layout.positions, dtype=torch.float64)
    rows, columns = layout.index().flatten(), source.flatten()
    matrix[rows[columns >= 0], columns[columns >= 0]] = 1.0
    return capture.field_of(TokenMap(matrix), x, layout, call)


def _channel_pad(capture: Capture, call: Call, x: Field, shape: tuple[int, ...], first: int) -> Field:
    """Channels padded or resized: the state is sampled."""
    sizes = list(zip(x.layout.dims, x.shape, shape, strict=True))
    moved = any(n != m and any(axis.is_position for axis in dim) for dim, n, m in sizes)
    layout = arranged([resized(dim, m) if n != m else dim for dim, n, m in sizes], () if moved else x.layout.order)
    return capture.drawn_field(layout, call, (x,), f"{call.name} sampled")


def _spatial(layout: Layout, shape: tuple[int, ...], first: int) -> Layout:
    dims = list(layout.dims[:first])
    for n, old in zip(shape[first:], layout.dims[first:], strict=True):
        dims.append(resized(old, n, TOKEN))
    front = tuple(axis for axis in layout.order if any(axis in dim for dim in layout.dims[:first]))
    return Layout(tuple(dims), front + tuple(axis for dim in dims[first:] for axis in dim))


def _unit_response(call: Call, x: Field, first: int, shape: tuple[int, ...]) -> Tensor:
    """`[in, out]` response of the trailing dimensions to unit inputs."""
    inner = x.shape[first:]
    count = math.prod(inner)
    units = torch.eye(count, dtype=torch.float64).reshape(count, *[1] * (first - 1), *inner)
    if call.kwargs.get("value"):
        call = replace(call, kwargs=call.kwargs | {"value": 0.0})
    return call.on(units, x).reshape(count, -1)


def _lifted(rows: Tensor, old: Layout, new: Layout, first: int) -> Tensor:
    """The matrix over all positions: the response within each group of leading positions."""
    lead = [axis for axis in old.order if any(axis in dim for dim in old.dims[:first])]
    count = math.prod(axis.size for axis in lead)
    inner = [axis for dim in old.dims[first:] for axis in dim]
    source = torch.arange(old.positions).reshape([axis.size for axis in old.order])
    source = source.permute([old.order.index(axis) for axis in (*lead, *inner)]).flatten()
    block = torch.kron(torch.eye(count, dtype=torch.float64), rows.T.contiguous())
    matrix = torch.zeros(new.positions, old.positions, dtype=torch.float64)
    matrix[:, source] = block
    return matrix


@rule("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d")
def sampled_map(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Field:
    result = on_meta(call)
    layout = _spatial(input.layout, tuple(result.shape), 2)
    return capture.drawn_field(layout, call, (input,), f"{call.name} sampled")


# -- Windows of an image side by side, and back: unfold and fold


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


@rule("unfold")
def unfold(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.nn.functional.unfold`; the tensor method of that name slides along one dimension."""
    if isinstance(input, Field) and call.function is torch.nn.functional.unfold:
        return _unfold(capture, call, input, *args, **kwargs)
    if not isinstance(input, Field):
        return replayed(capture, call)
    return moved(capture, call, input)


def _unfold(
    capture: Capture, call: Call, x: Field, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Field:
    """Windows side by side are a view; overlapping ones are taken in as channels."""
    size, step = _pair(kernel_size), _pair(stride)
    height, width = x.shape[-2:]
    if size == step and _pair(padding) == (0, 0) and height % size[0] == width % size[1] == 0:
        split = x.layout.reshaped((*x.shape[:-2], height // size[0], size[0], width // size[1], size[1]))
        split = split.permuted([*range(len(x.shape) - 2), -3, -1, -4, -2])
        channels = x.shape[-3] * math.prod(size)
        return viewed(x, split.reshaped((*x.shape[:-3], channels, height * width // math.prod(size))), call)
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip((height, width), size, _pair(dilation), _pair(padding), step, strict=True)
    ]
    index = image_windows(x.layout, (*x.shape[:-2], *counts), 2, size, stride, padding, dilation)
    places = math.prod(counts)
    dims = (*x.layout.dims[:-3], (*x.layout.dims[-3], Axis(math.prod(size), CHANNEL)), fresh(places, TOKEN))
    front = tuple(a for a in x.layout.order if any(a in dim for dim in x.layout.dims[:-3]))
    layout = Layout(dims, front + dims[-1])
    return capture.field_of(PositionsToChannels(index.T, layout.channels), x, layout, call)


@rule("fold")
def fold(
    capture: Capture,
    call: Call,
    input: Field,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """Windows side by side are a view of the image."""
    size, (height, width) = _pair(kernel_size), _pair(output_size)
    if size != _pair(stride) or _pair(padding) != (0, 0):
        raise Misaligned("fold of overlapping windows")
    front, channels = input.shape[:-2], input.shape[-2] // math.prod(size)
    rank = len(front)
    split = input.layout.reshaped((*front, channels, *size, height // size[0], width // size[1]))
    split = split.permuted([*range(rank + 1), rank + 3, rank + 1, rank + 4, rank + 2])
    return viewed(input, split.reshaped((*front, channels, height, width)), call)
