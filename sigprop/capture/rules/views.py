"""Views and copies: only the layout changes, the node is shared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.derived_weights import of_weights
from sigprop.capture.fields.moves import reshaped
from sigprop.capture.fields.views import expanded, viewed
from sigprop.capture.layout import CHANNEL, Axis, Layout
from sigprop.capture.record import Call, Field, Record, Weight
from sigprop.capture.registry import rule
from sigprop.capture.shapes import result_shape
from sigprop.errors import UnsupportedError
from sigprop.graph.graph import Node


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
    shape = result_shape(call)
    if isinstance(input, Tensor):
        return input.expand(shape)
    if isinstance(input, Weight):
        return of_weights(capture, Call(torch.Tensor.expand, "expand", (input, shape), {}, call.module))
    return expanded(capture, call, input, shape)
