"""Elementwise functions.

A function of one tensor stays a function of that tensor, however many calls spell it out (tanh-GELU, soft-capping,
squared ReLU), and becomes one activation when its state is needed. Two operands that share no randomness have a sum
or product rule; operands that share some are replayed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.broadcast import as_constant
from sigprop.capture.capture import Capture
from sigprop.capture.fields.combined import combined, fixed_factor, gained
from sigprop.capture.fields.norms import centred, normalized
from sigprop.capture.fields.pointwise import function_of_one, out_of_place, pointwise
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.fields.values import condition_of
from sigprop.capture.functions import UNARY
from sigprop.capture.record import Call, Field, Record, Weight
from sigprop.capture.registry import rule
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


@rule("mul", "multiply", "rmul")
def mul(capture: Capture, call: Call, input: Any, other: Any, **_: Any) -> Any:
    if isinstance(input, Field) or isinstance(other, Field):
        input, other = condition_of(input), condition_of(other)
        call = replace(call, args=(input, other))
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
