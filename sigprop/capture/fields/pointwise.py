"""Functions of one tensor, entry by entry: they stay functions of it until the state is needed, as one activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.broadcast import as_constant
from sigprop.capture.capture import Capture
from sigprop.capture.record import Call, Field
from sigprop.errors import InputError, UnsupportedError
from sigprop.graph.graph import Node
from sigprop.theory import activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.scale import Scale

NAMED = {"relu": "relu", "silu": "silu", "tanh": "tanh", "sigmoid": "sigmoid", "erf": "erf", "softplus": "softplus"}


def pointwise(
    capture: Capture, call: Call, item: Field, function: Callable[[Tensor], Tensor], slope: float | None = None
) -> Field:
    """`function(item)`, kept as a function of the item's base."""
    inner = item.function
    composed = function if inner is None else lambda x: function(inner(x))
    total = None
    if slope is not None and (inner is None or item.slope is not None):
        total = slope * (1.0 if inner is None else item.slope or 0.0)
    first = call.name if inner is None else None
    return Field(
        item.layout,
        lambda made: _activation_node(capture, made, call if first else None),
        sources=item.sources,
        root=item.base,
        function=composed,
        slope=total,
        statistic=item.statistic,
        transparent=item.transparent or item.is_source,
        call=call,
        inputs=(item,),
    )


def function_of_one(
    capture: Capture, call: Call, items: Sequence[Any], function: Callable[..., Tensor] | None = None
) -> Field | None:
    """A function of numbers and of functions of one tensor, entry by entry in the same arrangement."""
    fields = [item for item in items if isinstance(item, Field)]
    beside = fields[0] if fields else None
    numbers = [None if isinstance(item, Field) else as_constant(item, beside) for item in items]
    alike = all(
        item.base is fields[0].base
        and item.layout.dims == fields[0].layout.dims
        and item.statistic is fields[0].statistic
        for item in fields
    )
    if (
        not fields
        or not alike
        or any(n is None and not isinstance(i, Field) for n, i in zip(numbers, items, strict=True))
    ):
        return None
    applied = function or call.function

    def composed(x: Tensor) -> Tensor:
        given = [i.apply(x) if isinstance(i, Field) else n for i, n in zip(items, numbers, strict=True)]
        return applied(*(g if isinstance(g, Tensor) else x.new_tensor(g) for g in given))

    return Field(
        fields[0].layout,
        lambda item: _activation_node(capture, item, None),
        sources=fields[0].sources,
        root=fields[0].base,
        function=composed,
        statistic=fields[0].statistic,
        call=call,
        inputs=tuple(fields),
    )


def _activation_node(capture: Capture, item: Field, call: Call | None) -> Node:
    assert item.root is not None
    assert item.function is not None
    if item.statistic is not None:
        return capture.sampled(item, "function of a channel statistic")
    if item.slope is not None:
        return capture.apply(Scale(item.slope), item.root.node)
    if item.root.is_curved and _is_sum(item.root):
        return capture.sampled(item, "function of a sum that is not Gaussian")
    if item.root.of_few:
        return capture.sampled(item, "function of a norm over few entries")
    try:
        node = item.root.node
    except UnsupportedError:
        return capture.sampled(item, "a function of a tensor that has no state of its own")
    try:
        with torch.enable_grad():
            function = _known(call) or activations.get(item.function, name="spelt-out")
            signal = capture.states.signal(node)
            function.derivative_second_moment(signal.covariance.diagonal.max(), signal.mean.mean())
        return capture.apply(Activation(function), node)
    except InputError:
        return capture.sampled(item, "an activation beyond the reach of quadrature")


def _is_sum(item: Field) -> bool:
    return item.call is not None and item.call.name in ("add", "radd", "sub", "subtract")


def _known(call: Call | None) -> activations.ActivationFunction | None:
    if call is None:
        return None
    extra = [a for a in (*call.args[1:], *call.kwargs.values()) if not isinstance(a, bool)]
    if call.name == "gelu":
        approximate = call.kwargs.get("approximate", call.args[1] if len(call.args) > 1 else "none")
        return activations.get("gelu_tanh" if approximate == "tanh" else "gelu")
    return activations.get(NAMED[call.name]) if call.name in NAMED and not extra else None


def out_of_place(call: Call) -> Callable[..., Tensor]:
    """The out-of-place function of that name."""
    name = "pow" if call.name == "rpow" else call.name
    plain = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
    if call.name == "rpow":
        return lambda x, base: torch.pow(base, x)
    return plain or call.function
