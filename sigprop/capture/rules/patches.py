"""Windows of an image side by side, and back: unfold and fold."""

from __future__ import annotations

import math
from typing import Any

import torch

from sigprop.capture.capture import Capture
from sigprop.capture.fields.moves import moved
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.fields.views import viewed
from sigprop.capture.fields.windows import image_windows
from sigprop.capture.layout import CHANNEL, TOKEN, Axis, Layout, Misaligned
from sigprop.capture.record import Call, Field
from sigprop.capture.registry import rule
from sigprop.graph.graph import Node
from sigprop.theory.ops.positions_to_channels import PositionsToChannels


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
    dims = (
        *x.layout.dims[:-3],
        (*x.layout.dims[-3], Axis(math.prod(size), CHANNEL)),
        (Axis(places, TOKEN),) if places > 1 else (),
    )
    front = tuple(a for a in x.layout.order if any(a in dim for dim in x.layout.dims[:-3]))
    layout = Layout(dims, front + dims[-1])

    def make(_: Field) -> Node:
        return capture.apply(PositionsToChannels(index.T, layout.channels), x.node)

    return Field(layout, make, sources=x.sources, call=call, inputs=(x,))


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
