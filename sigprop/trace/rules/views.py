"""Views and copies: only the layout changes, the node is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.errors import UnsupportedError
from sigprop.theory import Node
from sigprop.theory.ops.gather import Gather
from sigprop.trace.layout import BATCH, CHANNEL, TOKEN, Axis, Dim, Layout, Misaligned
from sigprop.trace.record import Call, Field, Record, Weight, mapped
from sigprop.trace.rules import rule

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture


def viewed(item: Field, layout: Layout, call: Call) -> Field:
    """The same numbers under another layout."""
    return Field(
        layout,
        lambda _: item.node,
        sources=item.sources,
        root=item.base,
        function=item.function,
        slope=item.slope,
        statistic=item.statistic,
        centred=item.centred,
        transparent=item.transparent or item.is_source,
        call=call,
        inputs=(item,),
    )


@rule(
    "contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type", "type_as", "alias",
    "cpu", "cuda", "identity", "requires_grad", "as_subclass", "positive", "nan_to_num", "checkpoint_name",
)  # fmt: skip
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
    return _to_shape(capture, call, input, result_shape(call))


def _to_shape(capture: Capture, call: Call, input: Field, shape: tuple[int, ...]) -> Field:
    try:
        return viewed(input, input.layout.reshaped(shape), call)
    except Misaligned:
        from sigprop.trace.rules.movement import moved

        return moved(capture, call, input, shape)


def result_shape(call: Call, function: Any = None) -> tuple[int, ...]:
    """The shape torch itself gives the result, found on meta tensors."""
    result = on_meta(call, function)
    return tuple(result.shape)


def on_meta(call: Call, function: Any = None) -> Any:
    def meta(item: Any) -> Any:
        if isinstance(item, Record):
            return torch.empty(item.shape, dtype=item.dtype, device="meta")
        if isinstance(item, Tensor) and item.is_floating_point():
            return item.to("meta")
        return item

    args, kwargs = mapped((call.args, call.kwargs), meta)
    try:
        return (function or call.function)(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        args, kwargs = mapped((args, kwargs), _single)
        return (function or call.function)(*args, **kwargs)


def _single(item: Any) -> Any:
    """On meta, in float32 where it is floating: a shape does not depend on precision, mixed ones would be refused."""
    if not isinstance(item, Tensor):
        return item
    return item.to("meta", torch.float32) if item.is_floating_point() else item.to("meta")


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
    return _to_shape(capture, call, input, result_shape(call))


@rule("view_as_complex")
def view_as_complex(capture: Capture, call: Call, input: Field) -> Field:
    """Pairs of channels become complex numbers: followed by replay."""
    made = viewed(input, Layout(input.layout.dims[:-1], input.layout.order), call)
    made.make, made.root, made.function, made.dtype = _complex, None, None, torch.complex64
    return made


def _complex(item: Field) -> Node:
    raise UnsupportedError("a complex tensor has no state of its own")


@rule("view_as_real")
def view_as_real(capture: Capture, call: Call, input: Field) -> Field:
    dims = (*input.layout.dims, (Axis(2, CHANNEL),))
    make = lambda made: capture.sampled(made, "complex rotation sampled")  # noqa: E731
    return Field(Layout(dims, input.layout.order), make, input.sources, call=call, inputs=(input,))


@rule("real", "imag")
def part_of_complex(capture: Capture, call: Call, input: Field) -> Field:
    if not input.dtype.is_complex:
        return input
    make = lambda made: capture.sampled(made, f"{call.name} part sampled")  # noqa: E731
    return Field(input.layout, make, input.sources, call=call, inputs=(input,))


@rule("expand", "expand_as", "broadcast_to")
def expand(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """New axes are copies: of positions where the neighbours are positions, else of channels."""
    shape = result_shape(call)
    if isinstance(input, Tensor):
        return input.expand(shape)
    if isinstance(input, Weight):
        from sigprop.trace.rules.weights import of_weights

        return of_weights(capture, Call(torch.Tensor.expand, "expand", (input, shape), {}, call.module))
    layout = input.layout
    dims: list[Dim] = [*[()] * (len(shape) - len(layout.dims)), *layout.dims]
    grown = [place for place, (dim, n) in enumerate(zip(dims, shape, strict=True)) if not dim and n > 1]
    if not grown:
        return viewed(input, Layout(tuple(dims), layout.order), call)
    for place in grown:
        dims[place] = (Axis(shape[place], _copied_role(layout, dims, place)),)
    added = tuple(dims[place][0] for place in grown if dims[place][0].is_position)
    result = Layout(tuple(dims), added + layout.order)
    return repeated(capture, call, input, result)


def _copied_role(layout: Layout, dims: list, place: int) -> str:
    if (place > 0 and all(not dim for dim in dims[:place])) or place == 0:
        return TOKEN if any(a.role == BATCH for a in layout.order) else BATCH
    if place == len(dims) - 1 and layout.channels == 1:
        return CHANNEL
    before = [axis for dim in dims[:place] for axis in dim]
    return CHANNEL if any(axis.role == CHANNEL for axis in before) or not layout.order else TOKEN


def copied_like(capture: Capture, item: Field, others: list[Layout]) -> Field:
    """A field whose copies were taken for tokens, beside one that has channels there (keys that all heads share): its
    copies are those channels."""
    for other in others:
        item = _copied_like(capture, item, other)
    return item


def _copied_like(capture: Capture, item: Field, other: Layout) -> Field:
    if item.call is not None and item.call.name == "clone" and isinstance(item.inputs[0], Field):
        inner = _copied_like(capture, item.inputs[0], other)
        return item if inner is item.inputs[0] else inner
    if item.call is None or item.call.name != "expand" or len(item.layout.dims) != len(other.dims):
        return item
    source = item.inputs[0]
    assert isinstance(source, Field)
    before = ((),) * (len(item.shape) - len(source.shape)) + source.layout.dims
    dims = tuple(
        theirs if dim and not old and theirs and all(axis.role == CHANNEL for axis in theirs) else dim
        for dim, old, theirs in zip(item.layout.dims, before, other.dims, strict=True)
    )
    kept = {axis for dim in dims for axis in dim}
    made = Layout(dims, tuple(axis for axis in item.layout.order if axis in kept))
    return item if made.dims == item.layout.dims else repeated(capture, item.call, source, made)


def repeated(capture: Capture, call: Call, input: Field, result: Layout) -> Field:
    """Copies along axes that the input does not have (they come first in the kernel's order)."""
    times = result.positions // input.layout.positions
    copies = result.channels / input.layout.channels
    index = torch.arange(input.layout.positions).repeat(times)
    if times == 1 and copies == 1:
        return viewed(input, result, call)

    def make(_: Field) -> Node:
        return capture.apply(Gather(index, copies, result.channels), input.node)

    made = Field(result, make, sources=input.sources, call=call, inputs=(input,))
    if input.statistic is not None:
        made.statistic, made.root, made.function = input.statistic, input.base, input.function
    return made
