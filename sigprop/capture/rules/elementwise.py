"""Elementwise functions.

A function of one tensor stays a function of that tensor, however many calls spell it out (tanh-GELU, soft-capping,
squared ReLU), and becomes one activation when its state is needed. Two operands that share no randomness have a sum
or product rule; operands that share some are replayed.

Comparisons, and choices that depend on them entry by entry.

A comparison gives real values, one draw, so that a model can branch on it. They remember what was compared: where they
choose between entries (`where`, `masked_fill`, a mask that multiplies) the choice is made anew on every drawn or
integrated value, so that `where(x > 0, x, 0)` is the activation that it spells out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, rule
from sigprop.capture.functions import UNARY
from sigprop.capture.layout import as_constant
from sigprop.capture.record import Call, Field, Record, Weight
from sigprop.capture.rules.normalization import centred, normalized
from sigprop.capture.rules.operands import concrete_field, drawn_result, remember_choice
from sigprop.capture.rules.pointwise import combined, fixed_factor, function_of_one, gained, out_of_place, pointwise
from sigprop.capture.rules.replayed import kept, replayed
from sigprop.errors import UnsupportedError
from sigprop.theory.ops.dropout import Dropout
from sigprop.theory.ops.product import Product
from sigprop.theory.ops.residual import Residual


@rule(*UNARY)
def unary(capture: Capture, call: Call, input: Any, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, Record) for a in args) or not isinstance(input, Field):
        return replayed(capture, call)
    if any(isinstance(a, Tensor) and a.numel() > 1 for a in args):
        return replayed(capture, call)
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    args = tuple(a for a in args if not (isinstance(a, bool) and call.name in ("relu", "silu", "relu6", "mish")))
    function = out_of_place(call)
    slope = -1.0 if call.name == "neg" else None
    return pointwise(capture, call, input, lambda x: function(x, *args, **kwargs), slope)


@rule("add", "radd")
def add(capture: Capture, call: Call, input: Any, other: Any, *, alpha: float = 1.0, **_: Any) -> Any:
    if alpha != 1.0 and isinstance(input, Field) and isinstance(other, Field):
        scaled = mul(capture, Call(torch.mul, "mul", (other, alpha), {}, call.module), other, alpha)
        return _sum(capture, Call(torch.add, "add", (input, scaled), {}, call.module), input, scaled, 1.0)
    return _sum(capture, call, input, other, float(alpha))


@rule("sub", "subtract")
def sub(capture: Capture, call: Call, input: Any, other: Any, *, alpha: float = 1.0, **_: Any) -> Any:
    return _sum(capture, call, input, other, -float(alpha))


@rule("rsub")
def rsub(capture: Capture, call: Call, input: Any, other: Any, *, alpha: float = 1.0, **_: Any) -> Any:
    number = as_constant(other, input)
    if number is not None and isinstance(input, Field):
        return pointwise(capture, call, input, lambda x: number - alpha * x)
    return replayed(capture, call)


def _sum(capture: Capture, call: Call, first: Any, second: Any, sign: float) -> Any:
    first, second = _of_input(capture, first, second)
    shared = _one_base(capture, call, first, second)
    if shared is not None:
        return shared
    if isinstance(first, Field) and isinstance(second, Field) and sign == -1.0:
        spelt = centred(capture, call, first, second)
        if spelt is not None:
            return spelt
    constant = as_constant(second, first)
    if isinstance(first, Field) and constant is not None:
        if constant == 0.0:
            return first
        return pointwise(capture, call, first, lambda x: x + sign * constant)
    number = as_constant(first, second)
    if isinstance(second, Field) and number is not None:
        if number == 0.0 and sign == 1.0:
            return second
        return pointwise(capture, call, second, lambda x: number + sign * x)
    return combined(capture, call, first, second, Residual(1.0, sign))


def _of_input(capture: Capture, first: Any, second: Any) -> tuple[Any, Any]:
    """Real numbers beside a weight as the tensor of the network that they are."""
    for item, other in ((first, second), (second, first)):
        if isinstance(item, Weight) and isinstance(other, Tensor) and not isinstance(other, Record):
            made = concrete_field(capture, other)
            return (item, made) if item is first else (made, item)
    return first, second


@rule("mul", "multiply", "rmul")
def mul(capture: Capture, call: Call, input: Any, other: Any, **_: Any) -> Any:
    input, other = _of_input(capture, input, other)
    shared = _one_base(capture, call, input, other)
    if shared is not None:
        return shared
    for field, number in ((input, as_constant(other, input)), (other, as_constant(input, other))):
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
            return gained(capture, call, field, weight)
        if isinstance(field, Field) and isinstance(weight, Tensor):
            return fixed_factor(capture, call, field, weight)
    return combined(capture, call, input, other, Product())


@rule("div", "true_divide", "truediv", "divide")
def div(capture: Capture, call: Call, input: Any, other: Any, **_: Any) -> Any:
    number = as_constant(other, input)
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
    number = as_constant(other, input)
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
    function = out_of_place(call)
    extra = {key: value for key, value in call.kwargs.items() if key == "alpha"}
    made = function_of_one(capture, call, (first, second), lambda x, y: function(x, y, **extra))
    one, two = (1.0 if item.function is None else item.slope for item in (first, second))
    if made is not None and one is not None and two is not None and call.name in ("add", "sub"):
        sign = extra.get("alpha", 1.0) * (1.0 if call.name == "add" else -1.0)
        made.slope = one + sign * two
    return made


# -- Comparisons, and choices that depend on them entry by entry


@rule("gt", "lt", "ge", "le", "greater", "less")
def compared(capture: Capture, call: Call, input: Any, other: Any) -> Any:
    values = drawn_result(capture, call, input, other)
    condition = _condition(capture, call, input, other)
    if condition is not None:
        condition.dtype = torch.bool
        remember_choice(values, condition)
    return values


def _condition(capture: Capture, call: Call, input: Any, other: Any) -> Field | None:
    number = as_constant(other, input)
    if isinstance(input, Field) and number is not None:
        return pointwise(capture, call, input, lambda x: call.function(x, number))
    shared = function_of_one(capture, call, (input, other))
    if shared is not None:
        return shared
    try:
        return kept(capture, call)
    except UnsupportedError:
        return None


@rule("where")
def where(capture: Capture, call: Call, condition: Any, *choices: Any, **kwargs: Any) -> Any:
    if not choices and not kwargs:
        return drawn_result(capture, call, condition)
    first, second = (*choices, *kwargs.values())
    if call.function is torch.Tensor.where:
        condition, first = first, condition
    return _chosen(capture, call, condition, first, second)


@rule("masked_fill")
def masked_fill(capture: Capture, call: Call, input: Any, mask: Any, value: Any) -> Any:
    return _chosen(capture, call, mask, value, input)


def _chosen(capture: Capture, call: Call, condition: Any, first: Any, second: Any) -> Any:
    """`condition ? first : second`."""
    made = Call(_where, "where", (condition, first, second), {}, call.module)
    if isinstance(condition, Field):
        shared = function_of_one(capture, made, (condition, first, second))
        return shared if shared is not None else replayed(capture, made)
    mask = capture.value_of(condition)
    for field, other, share in ((first, second, mask), (second, first, ~mask)):
        if isinstance(field, Field) and as_constant(other, field) == 0.0:
            return fixed_factor(capture, made, field, share.double())
    return replayed(capture, made)


def _where(condition: Tensor, first: Any, second: Any) -> Tensor:
    return torch.where(condition.bool(), first, second)


@rule("dropout", "feature_dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d")
def dropout(capture: Capture, call: Call, input: Any, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any):
    training = kwargs.get("train", training)
    if not training or p == 0.0:
        return input
    if not isinstance(input, Field) or input.layout.has_keys:
        return replayed(capture, Call(torch.dropout, "dropout", (input, p, True), {}, call.module))
    inner = Call(torch.dropout, "dropout", (input, p, True), {}, call.module)
    return capture.field_of(Dropout(p), input, input.layout, inner)
