"""Windows over positions: convolutions in one to three dimensions, pools, other fixed linear maps of each channel."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Axis, Layout, Misaligned, arranged, fresh, of_roles, resized
from sigprop.capture.record import Call, Field, Weight, mapped, on_meta, result_shape
from sigprop.capture.rules.operands import as_field, bound_to
from sigprop.capture.rules.replayed import replayed
from sigprop.capture.rules.views import moved, viewed
from sigprop.distributions import CENTRED
from sigprop.graph.graph import Node
from sigprop.theory import Dense
from sigprop.theory.ops.convolution import Convolution
from sigprop.theory.ops.positions_to_channels import PositionsToChannels
from sigprop.theory.ops.scale import Scale
from sigprop.theory.ops.sources import ParameterSource
from sigprop.theory.ops.token_map import TokenMap


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
    law = weight.distribution
    given: dict[str, Any] = {}
    if bias is not None:
        given = {"bias_variance": bias.distribution.variance, "bias_mean": bias.distribution.mean}
    op = Convolution(
        channels_in * len(index),
        channels_out,
        law.variance,
        rows=index.T,
        groups=groups,
        window=tuple(weight.shape[-rank:]),
        centred=law.kind == CENTRED,
        mean=law.mean,
        tails=law.tails,
        **given,
    )
    node = capture.apply(op, x.node, weights=bound_to(weight=weight, bias=bias))
    inputs = (x, weight) if bias is None else (x, weight, bias)
    sources: Any = x.sources if op.of_few_products else None
    return Field(layout, lambda _: node, sources, is_drawn=op.of_few_products, call=call, inputs=inputs)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(capture: Capture, call: Call, input: Any, weight: Any, bias: Any = None, *_: Any, **__: Any) -> Any:
    """Of the raw input as a convolution of it, else drawn."""
    shape, rank = result_shape(call), int(call.name[-2])
    if isinstance(input, Tensor) and isinstance(weight, Weight) and shape[-rank - 1] == weight.shape[1]:  # one group
        return _pixels(capture, call, input, weight, bias, shape, rank, outputs=1)
    return replayed(capture, call)


def _pixels(
    capture: Capture,
    call: Call,
    input: Tensor,
    weight: Weight,
    bias: Weight | None,
    shape: tuple[int, ...],
    rank: int,
    outputs: int = 0,
) -> Field:
    """A convolution of the model's input: windows are read off a convolution with unit kernels. The weight has its
    output channels in dimension `outputs`."""
    others = [n for place, n in enumerate(weight.shape) if place != outputs]
    fan_in, width = math.prod(others), weight.shape[outputs]
    units = torch.eye(fan_in, dtype=torch.float64).reshape(fan_in, *others).movedim(0, outputs)
    args = tuple(units if item is weight else input.detach().double() if item is input else item for item in call.args)
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
    gram, sums = Dense(rows @ rows.T), rows.sum(1)
    op = ParameterSource(
        gram, law.variance, (width, fan_in), width, law.mean, sums, centred=centred, role="input", tails=law.tails
    )
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


# -- Fixed linear maps of the positions of each channel, and maxima over them


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
        return capture.drawn_field(_of_shape(input.layout, shape), call, (input,), f"{call.name} sampled")
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
    layout = _of_shape(x.layout, shape)
    source = torch.nn.functional.pad(x.layout.index(), _amounts(call), value=-1)
    matrix = torch.zeros(layout.positions, x.layout.positions, dtype=torch.float64)
    rows, columns = layout.index().flatten(), source.flatten()
    matrix[rows[columns >= 0], columns[columns >= 0]] = 1.0
    return capture.field_of(TokenMap(matrix), x, layout, call)


def _of_shape(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Dimensions of other sizes in the roles that they have; positions in their order where all are kept."""
    sizes = zip(layout.dims, layout.shape, shape, strict=True)
    dims = tuple(dim if size == old else resized(dim, size) for dim, old, size in sizes)
    kept = {axis for dim in dims for axis in dim}
    return arranged(dims, layout.order if kept.issuperset(layout.order) else ())


def _spatial(layout: Layout, shape: tuple[int, ...], first: int) -> Layout:
    dims = list(layout.dims[:first])
    for n, old in zip(shape[first:], layout.dims[first:], strict=True):
        dims.append(resized(old, n, TOKEN))
    front = tuple(axis for axis in layout.order if any(axis in dim for dim in layout.dims[:first]))
    return Layout(tuple(dims), front + tuple(axis for dim in dims[first:] for axis in dim if axis.is_position))


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
    block = torch.kron(torch.eye(count, dtype=torch.float64), rows.T.clone(memory_format=torch.contiguous_format))
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
