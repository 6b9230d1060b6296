"""Convolutions in one to three dimensions: strides, padding, dilation and groups."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Layout, arranged, fresh, of_roles, resized
from sigprop.capture.record import Call, Field, Weight, mapped, result_shape
from sigprop.capture.rules.operands import as_field, bound_to
from sigprop.capture.rules.replayed import replayed
from sigprop.distributions import CENTRED
from sigprop.theory import Dense
from sigprop.theory.ops.convolution import Convolution
from sigprop.theory.ops.sources import ParameterSource


@rule("conv1d", "conv2d", "conv3d")
def convolution(
    capture: Capture,
    call: Call,
    input: Any,
    weight: Any,
    bias: Weight | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    rank = int(call.name[-2])
    if not isinstance(weight, Weight):
        return replayed(capture, call)
    shape = result_shape(call)
    if isinstance(input, Tensor) and groups == 1:
        return _pixels(capture, call, input, weight, bias, shape, rank)
    x = _as_image(capture, input, rank)
    spatial = x.layout.dims[-rank:]
    if any(not a.is_position for dim in spatial for a in dim) or any(a.is_position for a in x.layout.dims[-rank - 1]):
        return _replayed_image(capture, call, x, shape, rank)
    layout = _image_layout(x.layout, shape, rank)
    capture.require_followed(layout.positions)
    index = image_windows(x.layout, shape, rank, weight.shape[-rank:], stride, padding, dilation)
    channels_in, channels_out = weight.shape[1], weight.shape[0] // groups
    law, shift = weight.distribution, None if bias is None else bias.distribution
    op = Convolution(
        channels_in * len(index),
        channels_out,
        law.variance,
        None if shift is None else shift.variance,
        rows=index.T,
        groups=groups,
        window=tuple(weight.shape[-rank:]),
        centred=law.kind == CENTRED,
        mean=law.mean,
        bias_mean=0.0 if shift is None else shift.mean,
    )
    node = capture.apply(op, x.node, weights=bound_to(weight=weight, bias=bias))
    inputs = (x, weight) if bias is None else (x, weight, bias)
    sources: Any = x.sources if op.of_few_products else None
    return Field(layout, lambda _: node, sources, few_products=op.of_few_products, call=call, inputs=inputs)


def _pixels(
    capture: Capture, call: Call, input: Tensor, weight: Weight, bias: Weight | None, shape: tuple[int, ...], rank: int
) -> Field:
    """A convolution of the model's input: windows are read off a convolution with unit kernels."""
    fan_in = math.prod(weight.shape[1:])
    units = torch.eye(fan_in, dtype=torch.float64).reshape(fan_in, *weight.shape[1:])
    args = tuple(units if item is weight else input.double() if item is input else item for item in call.args)
    kwargs = {key: units if item is weight else item for key, item in call.kwargs.items()}
    args, kwargs = mapped((args, kwargs), lambda item: None if item is bias and bias is not None else item)
    windows = call.function(*args, **kwargs).movedim(-rank - 1, -1)
    roles = [BATCH] * (len(shape) - rank - 1) + [CHANNEL] + [TOKEN] * rank
    layout = of_roles(shape, roles)
    capture.require_followed(layout.positions)
    rows = windows.reshape(-1, fan_in)
    law, centred = weight.distribution, weight.distribution.kind == CENTRED
    if centred:
        rows = (rows - rows.mean(1, keepdim=True)) * (fan_in / max(fan_in - 1, 1)) ** 0.5
    shape, gram, sums = (weight.shape[0], fan_in), Dense(rows @ rows.T), rows.sum(1)
    op = ParameterSource(gram, law.variance, shape, weight.shape[0], law.mean, sums, centred=centred, role="input")
    op = op if bias is None else op.with_law("bias", bias.distribution)
    node = capture.apply(op, weights=bound_to(weight=weight, bias=bias))
    source = Field(of_roles(tuple(input.shape), [CHANNEL] * input.dim()), lambda _: node)
    inputs = (source, weight) if bias is None else (source, weight, bias)
    return Field(layout, lambda _: node, call=call, inputs=inputs)


def _as_image(capture: Capture, item: Any, rank: int) -> Field:
    if isinstance(item, Field):
        return item
    lead = len(item.shape) - rank - 1
    roles = [BATCH] * lead + [CHANNEL] + [TOKEN] * rank
    return as_field(capture, item, of_roles(tuple(item.shape), roles))


def _image_layout(old: Layout, shape: tuple[int, ...], rank: int) -> Layout:
    dims = list(old.dims[: -rank - 1])
    front = tuple(axis for axis in old.order if any(axis in dim for dim in dims))
    dims += [fresh(shape[-rank - 1], CHANNEL), *(fresh(n, TOKEN) for n in shape[-rank:])]
    return Layout(tuple(dims), front + tuple(a for dim in dims[-rank:] for a in dim))


def _replayed_image(capture: Capture, call: Call, x: Field, shape: tuple[int, ...], rank: int) -> Field:
    """Convolution over an axis that is not a position: sampled, its result has fresh axes of the same roles."""
    dims = []
    for place, n in enumerate(shape):
        old = x.layout.dims[place]
        same = old and math.prod(a.size for a in old) == n and place != len(shape) - rank - 1
        dims.append(old if same else resized(old, n))
    return capture.drawn_field(arranged(dims, x.layout.order), call, (x,), "convolution sampled")


# -- Which pixels the windows of a convolution see


def image_windows(
    layout: Layout,
    shape: tuple[int, ...],
    rank: int,
    size: tuple[int, ...],
    stride: Any,
    padding: Any,
    dilation: Any,
) -> Tensor:
    """`[offset, position]`: the kernel row that each offset of the window sees, -1 outside the image."""

    def each(value: Any) -> tuple[int, ...]:
        return (value,) * rank if isinstance(value, int) else tuple(value) * (rank if len(value) == 1 else 1)

    steps, gaps = each(stride), each(dilation)
    if isinstance(padding, str):
        before = tuple(g * (k - 1) // 2 if padding == "same" else 0 for g, k in zip(gaps, size, strict=True))
    else:
        before = each(padding)
    rows = layout.index()
    rows = rows.reshape(-1, *rows.shape[-rank:])
    found = []
    for offset in itertools.product(*(range(k) for k in size)):
        places, inside = [], []
        for d in range(rank):
            place = torch.arange(shape[len(shape) - rank + d]) * steps[d] - before[d] + offset[d] * gaps[d]
            inside.append((place >= 0) & (place < rows.shape[1 + d]))
            places.append(place.clamp(0, rows.shape[1 + d] - 1))
        grid = rows
        live = torch.ones((), dtype=torch.bool)
        for d in range(rank):
            grid = grid.index_select(1 + d, places[d])
            live = live[..., None] & inside[d]
        found.append(torch.where(live, grid, -1).flatten())
    return torch.stack(found)
