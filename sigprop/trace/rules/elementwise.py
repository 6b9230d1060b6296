"""Elementwise functions.

A function of one tensor stays a function of that tensor, however many calls spell it out (tanh-GELU, soft-capping,
squared ReLU), and becomes one activation when its state is needed. Two operands that share no randomness have a sum
or product rule; operands that share some are replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.errors import InputError, UnsupportedError
from sigprop.theory import Node, activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.gain import Gain
from sigprop.theory.ops.modulate import Modulate
from sigprop.theory.ops.product import Product
from sigprop.theory.ops.residual import Residual
from sigprop.theory.ops.scale import Scale
from sigprop.trace.broadcast import (
    aligned,
    as_constant,
    common_layout,
    concrete_field,
    concrete_kernel,
    concrete_rows,
    outer_streams,
    weight_field,
    weight_sharing,
    with_streams,
)
from sigprop.trace.layout import BATCH, CHANNEL, KEY, LARGEST, TOKEN, Axis, Layout, Misaligned
from sigprop.trace.record import Call, Field, Record, Weight, independent, united
from sigprop.trace.rules import rule
from sigprop.trace.rules.normalization import centred, normalized
from sigprop.trace.shared_weights import summed

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

UNARY = (
    "relu relu6 gelu silu tanh sigmoid erf exp exp2 log log1p log2 sqrt rsqrt square reciprocal neg abs sin cos "
    "softplus leaky_relu elu selu celu mish hardtanh hardswish hardsigmoid softsign logsigmoid clamp clamp_min "
    "clamp_max pow tan atan sinh cosh expm1 threshold hardshrink softshrink tanhshrink sign round floor ceil rpow "
    "sgn log_sigmoid celu rrelu pow prelu_constant quick_gelu logit asinh trunc"
)
NAMED = {"relu": "relu", "silu": "silu", "tanh": "tanh", "sigmoid": "sigmoid", "erf": "erf", "softplus": "softplus"}


@rule(*dict.fromkeys(UNARY.split()))
def unary(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, Record) for a in args) or not isinstance(input, Field):
        return replayed(capture, call)
    if any(isinstance(a, Tensor) and a.numel() > 1 for a in args):
        return replayed(capture, call)
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    args = tuple(a for a in args if not (isinstance(a, bool) and call.name in ("relu", "silu", "relu6", "mish")))
    function = _plain(call)
    slope = -1.0 if call.name == "neg" else None
    return pointwise(capture, call, input, lambda x: function(x, *args, **kwargs), slope)


def _plain(call: Call) -> Callable[..., Tensor]:
    """The out-of-place function of that name."""
    name = "pow" if call.name == "rpow" else call.name
    plain = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
    if call.name == "rpow":
        return lambda x, base: torch.pow(base, x)
    return plain or call.function


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
            largest = node.signal.covariance.diagonal.max()
            function.derivative_second_moment(largest, node.signal.mean.mean())
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


# -- two operands


@rule("add", "radd")
def add(capture: Capture, call: Call, input: Any, other: Any, *, alpha: float = 1.0, **_: Any) -> Any:
    return _sum(capture, call, input, other, float(alpha))


@rule("sub", "subtract")
def sub(capture: Capture, call: Call, input: Any, other: Any, *, alpha: float = 1.0, **_: Any) -> Any:
    return _sum(capture, call, input, other, -float(alpha))


@rule("rsub")
def rsub(capture: Capture, call: Call, input: Any, other: Any, *, alpha: float = 1.0, **_: Any) -> Any:
    number = as_constant(other)
    if number is not None and isinstance(input, Field):
        return pointwise(capture, call, input, lambda x: number - alpha * x)
    return replayed(capture, call)


def _sum(capture: Capture, call: Call, first: Any, second: Any, sign: float) -> Any:
    shared = _one_base(capture, call, first, second)
    if shared is not None:
        return shared
    if isinstance(first, Field) and isinstance(second, Field) and sign == -1.0:
        spelt = centred(capture, call, first, second)
        if spelt is not None:
            return spelt
    constant = as_constant(second)
    if isinstance(first, Field) and constant is not None:
        if constant == 0.0:
            return first
        return pointwise(capture, call, first, lambda x: x + sign * constant)
    number = as_constant(first)
    if isinstance(second, Field) and number is not None:
        if number == 0.0 and sign == 1.0:
            return second
        return pointwise(capture, call, second, lambda x: number + sign * x)
    return combined(capture, call, first, second, Residual(1.0, sign))


@rule("mul", "multiply", "rmul")
def mul(capture: Capture, call: Call, input: Any, other: Any, **_: Any) -> Any:
    if isinstance(input, Field) or isinstance(other, Field):
        input, other = _conditions(input, other)
        call = replace(call, args=(input, other))
    shared = _one_base(capture, call, input, other)
    if shared is not None:
        return shared
    for field, number in ((input, as_constant(other)), (other, as_constant(input))):
        if isinstance(field, Field) and number is not None:
            if number == 1.0:
                return field
            return pointwise(capture, call, field, lambda x, n=number: x * n, slope=number)
    for field, statistic in ((input, other), (other, input)):
        if isinstance(field, Field) and isinstance(statistic, Field) and statistic.statistic is not None:
            spelt = normalized(capture, call, field, statistic, inverse=False)
            if spelt is not None:
                return spelt
    for field, weight in ((input, other), (other, input)):
        if isinstance(field, Field) and isinstance(weight, Weight):
            return _gain(capture, call, field, weight)
        if isinstance(field, Field) and isinstance(weight, Tensor):
            return fixed_factor(capture, call, field, weight)
    return combined(capture, call, input, other, Product())


def _conditions(*items: Any) -> tuple[Any, ...]:
    from sigprop.trace.rules.conditions import condition_of

    return tuple(condition_of(item) for item in items)


@rule("div", "true_divide", "truediv", "divide")
def div(capture: Capture, call: Call, input: Any, other: Any, **_: Any) -> Any:
    number = as_constant(other)
    if isinstance(input, Field) and number is not None:
        return pointwise(capture, call, input, lambda x: x / number, slope=1.0 / number)
    shared = _one_base(capture, call, input, other)
    if shared is not None:
        return shared
    if isinstance(input, Field) and isinstance(other, Tensor):
        return fixed_factor(capture, call, input, 1.0 / other.double())
    if isinstance(input, Field) and isinstance(other, Field) and other.statistic is not None:
        spelt = normalized(capture, call, input, other, inverse=True)
        if spelt is not None:
            return spelt
    return replayed(capture, call)


@rule("rdiv", "rtruediv", "reciprocal_div")
def rdiv(capture: Capture, call: Call, input: Any, other: Any) -> Any:
    number = as_constant(other)
    if isinstance(input, Field) and number is not None:
        return pointwise(capture, call, input, lambda x: number / x)
    return replayed(capture, call)


@rule("lerp", "addcmul", "addcdiv", "maximum", "minimum", "atan2", "remainder", "fmod", "xlogy")
def several(capture: Capture, call: Call, *args: Any, **kwargs: Any) -> Any:
    shared = None if kwargs else function_of_one(capture, call, args)
    return shared if shared is not None else replayed(capture, call)


def _one_base(capture: Capture, call: Call, first: Any, second: Any) -> Field | None:
    """Two functions of one tensor, entry by entry in the same arrangement."""
    if not (isinstance(first, Field) and isinstance(second, Field)):
        return None
    function = _plain(call)
    extra = {key: value for key, value in call.kwargs.items() if key == "alpha"}
    made = function_of_one(capture, call, (first, second), lambda x, y: function(x, y, **extra))
    if made is not None and first.slope and second.slope is not None and call.name in ("add", "sub"):
        made.slope = first.slope + (second.slope if call.name == "add" else -second.slope)
    return made


def function_of_one(
    capture: Capture, call: Call, items: Sequence[Any], function: Callable[..., Tensor] | None = None
) -> Field | None:
    """A function of numbers and of functions of one tensor, entry by entry in the same arrangement."""
    fields = [item for item in items if isinstance(item, Field)]
    numbers = [None if isinstance(item, Field) else as_constant(item) for item in items]
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


def combined(capture: Capture, call: Call, first: Any, second: Any, op: Residual | Product) -> Any:
    """Sum or product of two tensors, at least one of them a field; independent ones have a rule."""
    if not isinstance(first, Field) and not isinstance(second, Field):
        return replayed(capture, call)
    if any(isinstance(x, Field) and (_has_keys(x) or x.layout.positions > LARGEST) for x in (first, second)):
        return replayed(capture, call)
    first, second = _as_fields(capture, first, second)
    try:
        layout, (own_first, own_second) = common_layout([first.layout, second.layout])
    except Misaligned:
        return replayed(capture, call)
    if not independent(first, second) or any(a.role == KEY for dim in layout.dims for a in dim):
        return replayed(capture, call)
    if isinstance(op, Product) and (streams := outer_streams(layout, own_first, own_second)):
        make = lambda made: capture.sampled(made, "outer product of channels sampled")  # noqa: E731
        wide = with_streams(layout, streams)
        return Field(wide, make, united((first, second)), call=call, inputs=(first, second))
    try:
        left, right = aligned(capture, first, layout, own_first), aligned(capture, second, layout, own_second)
        node = summed(capture, op, left, right) if isinstance(op, Residual) else capture.apply(op, left, right)
    except UnsupportedError:  # a mask of infinities, or a table over pairs of tokens
        return replayed(capture, call)
    gaussian = isinstance(op, Residual) and not first.is_curved and not second.is_curved
    sources: Any = None if gaussian else united((first, second))
    return Field(layout, lambda _: node, sources, call=call, inputs=(first, second))


def _has_keys(item: Any) -> bool:
    return isinstance(item, Field) and any(a.role == KEY for dim in item.layout.dims for a in dim)


def _as_fields(capture: Capture, first: Any, second: Any) -> tuple[Field, Field]:
    model = first if isinstance(first, Field) else second
    made = []
    for item in (first, second):
        if isinstance(item, Field):
            made.append(item)
        else:
            layout = _broadcast_layout(model.layout, tuple(item.shape))
            build: Any = weight_field if isinstance(item, Weight) else concrete_field
            made.append(build(capture, item, layout))
    return made[0], made[1]


def _broadcast_layout(model: Layout, shape: tuple[int, ...]) -> Layout:
    """Roles of a real tensor or weight that meets a field: those of the dimensions it is aligned with."""
    dims: list = []
    for back, n in enumerate(reversed(shape)):
        place = len(model.dims) - 1 - back
        like = model.dims[place] if place >= 0 else ()
        if n == 1:
            dims.append(())
        elif like:
            dims.append(like)
        else:
            known = any(a.role == BATCH for a in model.order)
            role = CHANNEL if back == 0 else (TOKEN if known or place > 0 else BATCH)
            dims.append((Axis(n, role),))
    dims.reverse()
    inside = [axis for dim in dims for axis in dim if axis.is_position]
    order = [axis for axis in model.order if axis in inside]
    return Layout(tuple(dims), tuple(order + [axis for axis in inside if axis not in order]))


def _gain(capture: Capture, call: Call, field: Field, weight: Weight) -> Any:
    if _has_keys(field):
        return replayed(capture, call)
    own = _broadcast_layout(field.layout, weight.shape)
    try:
        layout, (own_field, _) = common_layout([field.layout, own])
    except Misaligned:
        return replayed(capture, call)
    law = weight.distribution
    node = aligned(capture, field, layout, own_field)
    op = Gain(law.second_moment, law.mean, weight_sharing(weight, layout), weight.shape, layout.channels)
    made = capture.apply(op, node, weights={"weight": (weight, math.prod(weight.shape))})
    return Field(layout, lambda _: made, sources=field.sources, call=call, inputs=(field, weight))


def fixed_factor(capture: Capture, call: Call, field: Field, numbers: Tensor) -> Any:
    """A field times real numbers."""
    if _has_keys(field):
        return replayed(capture, call)
    own = _broadcast_layout(field.layout, tuple(numbers.shape))
    try:
        layout, (own_field, _) = common_layout([field.layout, own])
    except Misaligned:
        return replayed(capture, call)

    def make(_: Field) -> Node:
        kernel, mean = concrete_kernel(concrete_rows(numbers, layout))
        return capture.apply(Modulate(kernel, mean), aligned(capture, field, layout, own_field))

    return Field(layout, make, sources=field.sources, call=call, inputs=(field,))


def replayed(capture: Capture, call: Call, reason: str = "") -> Any:
    """Keep the call; its state, if anyone asks, is sampled."""
    from sigprop.trace.rules.fallback import sample

    return sample(capture, call, reason)


__all__ = ["add", "combined", "pointwise", "replayed", "united"]
