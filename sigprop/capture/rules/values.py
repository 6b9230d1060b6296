"""Questions about values: routing, comparisons and branches get one real draw of the tensor."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.layout import Layout, arranged, resized
from sigprop.capture.noise import MAKERS, remember_noise
from sigprop.capture.record import Call, Field, mapped, on_meta
from sigprop.capture.rules.operands import drawn_result, remember_choice
from sigprop.capture.rules.replayed import kept, replayed
from sigprop.errors import UnsupportedError


@rule(
    "item",
    "tolist",
    "bool",
    "int",
    "float_value",
    "nonzero",
    "argmax",
    "argmin",
    "argsort",
    "searchsorted",
    "eq",
    "ne",
    "isnan",
    "isinf",
    "isfinite",
    "all",
    "any",
    "allclose",
    "equal",
    "bucketize",
    "unique",
    "logical_not",
    "logical_and",
    "logical_or",
    "long",
    "index_put_value",
    "numpy",
    "histc",
    "bincount",
    "multinomial",
    "bernoulli",
    "count_nonzero",
    "unique_consecutive",
    "invert",
    "signbit",
    "contains",
)
def real(capture: Capture, call: Call, *args: Any, **kwargs: Any) -> Any:
    values = drawn_result(capture, call, *args, **kwargs)
    if isinstance(values, Tensor):
        with suppress(UnsupportedError):
            remember_choice(values, kept(capture, call))
    return values


@rule(
    "rand_like",
    "randn_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_tensor",
)
def made_alike(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """New numbers in the shape and type of a tensor, whatever its values are."""
    model = torch.empty((), dtype=input.dtype).expand(input.shape)
    args, kwargs = mapped((args, kwargs), capture.value_of)
    made = call.function(model, *args, **kwargs)
    if call.name in MAKERS:
        remember_noise(made, call.function, call.name, (), kwargs)
    return made


@rule("topk", "sort", "kthvalue", "max", "min", "mode", "median", "cummax")
def ranked(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Values are traced, indices are real."""
    result = on_meta(call)
    if isinstance(result, Tensor):
        return replayed(capture, call)
    if not isinstance(input, Field):
        return call.function(capture.value_of(input), *args, **kwargs)
    default = -1 if call.name in ("topk", "sort", "kthvalue") else 0
    dim = kwargs.get("dim", next((a for a in args[call.name == "topk" :] if not isinstance(a, bool)), default))
    keep = len(result[0].shape) == len(input.shape)
    layout = _ranked_layout(input.layout, dim % len(input.shape), tuple(result[0].shape), keep)
    values = capture.drawn_field(layout, call, (input,), f"{call.name} sampled", output=0)
    indices = _chosen(call.function(capture.value_of(input), *args, **kwargs)[1], layout, capture, call, input)
    kind = getattr(torch.return_types, call.name, None)
    return kind((values, indices)) if kind is not None else (values, indices)


def _chosen(indices: Tensor, layout: Layout, capture: Capture, call: Call, input: Field) -> Tensor:
    """Real indices that remember how they were chosen, so that entries gathered by them are the chosen ones again."""
    made = capture.drawn_field(layout, call, (input,), f"{call.name} sampled", output=1)
    made.dtype, indices = indices.dtype, indices.detach()
    remember_choice(indices, made)
    return indices


def _ranked_layout(layout: Layout, place: int, shape: tuple[int, ...], keep: bool) -> Layout:
    old = layout.dims[place]
    if keep and shape[place] == layout.shape[place]:
        return layout
    new = [resized(old, shape[place])] if keep else []
    return arranged((*layout.dims[:place], *new, *layout.dims[place + 1 :]), layout.order)
