"""Views and copies: only the layout changes, the node is shared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.derived_weights import of_weights
from sigprop.capture.fields.operands import choice_of
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.fields.views import expanded, moved, reshaped, sliced, viewed
from sigprop.capture.layout import CHANNEL, Axis, Layout
from sigprop.capture.record import Call, Field, Record, Weight, mapped, on_meta, result_shape
from sigprop.errors import UnsupportedError
from sigprop.graph.graph import Node


@rule(
    "contiguous",
    "clone",
    "to",
    "float",
    "double",
    "half",
    "bfloat16",
    "type",
    "type_as",
    "alias",
    "cpu",
    "cuda",
    "identity",
    "requires_grad",
    "as_subclass",
    "positive",
    "nan_to_num",
    "checkpoint_name",
)
def same(capture: Capture, call: Call, input: Record, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, torch.dtype) and not a.is_floating_point for a in (*args, *kwargs.values())):
        return call.function(capture.value_of(input), *args, **kwargs)
    if isinstance(input, Tensor):
        return (
            input.to(args[0].dtype) if args and isinstance(args[0], Record) else call.function(input, *args, **kwargs)
        )
    return input


@rule("view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "ravel")
def reshape(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], torch.dtype):
        return input
    if isinstance(input, Tensor):
        return input.reshape(result_shape(call))
    return reshaped(capture, call, input, result_shape(call))


@rule("transpose", "swapaxes", "swapdims", "t", "adjoint")
def transpose(capture: Capture, call: Call, input: Field, dim0: int = 0, dim1: int = 1) -> Field:
    order = list(range(len(input.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return viewed(input, input.layout.permuted(order), call)


@rule("permute")
def permute(capture: Capture, call: Call, input: Field, *dims: Any, **kwargs: Any) -> Field:
    given = kwargs.get("dims", dims)
    order = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    return viewed(input, input.layout.permuted([place % len(input.shape) for place in order]), call)


@rule("movedim", "moveaxis")
def movedim(capture: Capture, call: Call, input: Field, source: Any, destination: Any) -> Field:
    rank = len(input.shape)
    places = torch.empty([n + 2 for n in range(rank)], device="meta")
    moved = torch.movedim(places, source, destination)
    return viewed(input, input.layout.permuted([n - 2 for n in moved.shape]), call)


@rule("unsqueeze")
def unsqueeze(capture: Capture, call: Call, input: Field, dim: int) -> Field:
    return viewed(input, input.layout.inserted(dim % (len(input.shape) + 1)), call)


@rule("squeeze")
def squeeze(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Field:
    return reshaped(capture, call, input, result_shape(call))


@rule("view_as_complex")
def view_as_complex(capture: Capture, call: Call, input: Field) -> Field:
    """Pairs of channels become complex numbers: followed by replay."""
    layout, transparent = Layout(input.layout.dims[:-1], input.layout.order), input.transparent or input.is_source
    made = Field(layout, _complex, input.sources, transparent=transparent, call=call, inputs=(input,))
    made.dtype = torch.complex64
    return made


def _complex(item: Field) -> Node:
    raise UnsupportedError("a complex tensor has no state of its own")


@rule("view_as_real")
def view_as_real(capture: Capture, call: Call, input: Field) -> Field:
    dims = (*input.layout.dims, (Axis(2, CHANNEL),))
    return capture.drawn_field(Layout(dims, input.layout.order), call, (input,), "complex rotation sampled")


@rule("real", "imag")
def part_of_complex(capture: Capture, call: Call, input: Field) -> Field:
    if not input.dtype.is_complex:
        return input
    return capture.drawn_field(input.layout, call, (input,), f"{call.name} part sampled")


@rule("expand", "expand_as", "broadcast_to")
def expand(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    shape = result_shape(call)
    if isinstance(input, Tensor):
        return input.expand(shape)
    if isinstance(input, Weight):
        return of_weights(capture, Call(torch.Tensor.expand, "expand", (input, shape), {}, call.module))
    return expanded(capture, call, input, shape)


@rule("getitem")
def getitem(capture: Capture, call: Call, input: Any, index: Any) -> Any:
    if not isinstance(input, Field):
        return call.function(input, mapped(index, capture.value_of))
    items = list(index) if isinstance(index, tuple) else [index]
    items = [capture.value_of(item) for item in items]
    if any(isinstance(item, (Tensor, list)) for item in items):
        return moved(capture, Call(call.function, call.name, (input, tuple(items)), {}, call.module), input)
    items = _without_ellipsis(items, len(input.shape))
    result, place = input, 0
    for item in items:
        if item is None:
            result = viewed(result, result.layout.inserted(place), call)
            place += 1
            continue
        size = result.shape[place]
        if isinstance(item, int):
            start = item % size
            result = sliced(capture, call, result, place, start, start + 1)
            result = viewed(result, _dropped(result.layout, place), call)
            continue
        start, stop, step = item.indices(size)
        if (start, stop, step) != (0, size, 1):
            result = sliced(capture, call, result, place, start, stop, step)
            if isinstance(result, Tensor):
                return torch.empty(result.shape)[(slice(None),) * (place + 1) + tuple(items[items.index(item) + 1 :])]
        place += 1
    return _as_result_of(result, call, input)


def _as_result_of(result: Field, call: Call, input: Field) -> Field:
    if result is input:
        return viewed(input, input.layout, call)
    result.call, result.output = call, None
    return result


def _without_ellipsis(items: list, rank: int) -> list:
    if Ellipsis in items:
        place = items.index(Ellipsis)
        used = sum(item is not None for item in items) - 1
        items = items[:place] + [slice(None)] * (rank - used) + items[place + 1 :]
    return items


def _dropped(layout: Layout, place: int) -> Layout:
    return Layout(layout.dims[:place] + layout.dims[place + 1 :], layout.order)


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> tuple[Field, ...]:
    parts = on_meta(call)
    place = kwargs.get("dim", args[1] if len(args) > 1 else 0) % len(input.shape)
    found, start = [], 0
    for number, part in enumerate(parts):
        stop = start + part.shape[place]
        piece = sliced(capture, call, input, place, start, stop, output=number)
        if isinstance(piece, Field):
            piece.call, piece.output = call, number
        found.append(piece)
        start = stop
    return tuple(found)


@rule("unbind", "iter")
def unbind(capture: Capture, call: Call, input: Field, dim: int = 0) -> tuple[Field, ...]:
    place, found = dim % len(input.shape), []
    for number in range(input.shape[place]):
        piece = sliced(capture, call, input, place, number, number + 1)
        piece = viewed(piece, _dropped(piece.layout, place), call)
        piece.output = number
        found.append(piece)
    return tuple(found)


@rule("narrow")
def narrow(capture: Capture, call: Call, input: Field, dim: int, start: int, length: int) -> Field:
    piece = sliced(capture, call, input, dim % len(input.shape), int(start), int(start) + length)
    return _as_result_of(piece, call, input)


@rule("select")
def select(capture: Capture, call: Call, input: Field, dim: int, index: int) -> Field:
    place = dim % len(input.shape)
    start = int(index) % input.shape[place]
    piece = sliced(capture, call, input, place, start, start + 1)
    return _as_result_of(viewed(piece, _dropped(piece.layout, place), call), call, input)


@rule("repeat", "tile")
def repeat(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Copies of dimensions of size one are an expansion."""
    shape = result_shape(call)
    if isinstance(input, Field):
        old = (*[1] * (len(shape) - len(input.shape)), *input.shape)
        if all(n in (1, m) for n, m in zip(old, shape, strict=True)):
            return expanded(capture, call, input, shape)
    return rearranged(capture, call, input, *args, **kwargs)


@rule(
    "index_select",
    "roll",
    "flip",
    "repeat_interleave",
    "gather",
    "take_along_dim",
    "rot90",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
    "masked_select",
    "diagonal",
    "as_strided",
    "index",
)
def rearranged(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    chosen = any(choice_of(item) is not item for item in (*args, *kwargs.values()))
    if call.name in ("gather", "take_along_dim") and isinstance(input, Field) and chosen:
        args, kwargs = mapped((args, kwargs), choice_of)
        return replayed(capture, Call(call.function, call.name, (input, *args), kwargs, call.module), "chosen entries")
    args, kwargs = mapped((args, kwargs), capture.value_of)
    if not isinstance(input, Field):
        return call.function(input, *args, **kwargs)
    return moved(capture, Call(call.function, call.name, (input, *args), kwargs, call.module), input)
