"""BatchNorm: fixed statistics in evaluation mode, those of the batch in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.derived_weights import of_weights
from sigprop.capture.fields.norms import affine, channel_shape, image_layout, of_real
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.record import Call, Field, Record, Weight, few_entries
from sigprop.capture.registry import by_rule, rule
from sigprop.graph.graph import Node
from sigprop.theory.ops.batch_norm import FiniteBatchNorm


@rule("batch_norm")
def batch_norm(
    capture: Capture,
    call: Call,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Weight | None = None,
    bias: Weight | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    if isinstance(input, Tensor):
        mean, variance = (None if item is None else item.clone() for item in (running_mean, running_var))
        values = torch.batch_norm(input, None, None, mean, variance, training or mean is None, momentum, eps, False)
        return of_real(capture, call, values, weight, bias, image_layout(values), channel_shape(values))
    if not isinstance(input, Field) or not all(isinstance(item, Weight) or item is None for item in (weight, bias)):
        return replayed(capture, call)
    if training or running_mean is None:
        return _of_batch(capture, call, input, weight, bias, eps)
    return _fixed(capture, call, input, running_mean, running_var, weight, bias, eps)


def _fixed(
    capture: Capture,
    call: Call,
    x: Field,
    mean: Tensor,
    variance: Tensor,
    weight: Weight | None,
    bias: Weight | None,
    epsilon: float,
) -> Any:
    """`(x - mean) / root(variance) * weight + bias`, one number per channel, as the elementwise functions it is."""
    shape = (-1, *[1] * (len(x.shape) - 2))

    def step(function: Any, result: Field, other: Any) -> Field:
        if isinstance(other, Record):
            other = of_weights(capture, Call(torch.reshape, "reshape", (other, shape), {}, call.module))
        else:
            other = other.detach().float().reshape(shape)
        return by_rule(capture, Call(function, function.__name__, (result, other), {}, call.module))

    result = step(torch.sub, x, mean)
    result = step(torch.mul, result, (variance.double() + epsilon).rsqrt())
    if weight is not None:
        result = step(torch.mul, result, weight)
    return result if bias is None else step(torch.add, result, bias)


def _of_batch(
    capture: Capture, call: Call, x: Field, weight: Weight | None, bias: Weight | None, epsilon: float
) -> Any:
    """The theory's BatchNorm: every position is a sample."""
    channels = x.layout.dims[1]
    others = [axis for place, dim in enumerate(x.layout.dims) if place != 1 for axis in dim]
    if any(axis.is_position for axis in channels) or any(not axis.is_position for axis in others):
        return replayed(capture, call)
    told, bound = affine(weight, bias)
    op = FiniteBatchNorm(epsilon=epsilon, **told)

    def make(_: Field) -> Node:
        return capture.apply(op, x.node, weights=bound)

    inputs = tuple(item for item in (x, weight, bias) if item is not None)
    call, few = _stateless(call, x, weight, bias, epsilon), few_entries(x.layout.positions)
    return Field(x.layout, make, sources=x.sources, of_few=few, call=call, inputs=inputs)


def _stateless(call: Call, x: Field, weight: Weight | None, bias: Weight | None, epsilon: float) -> Call:
    """The same call without running statistics, which a replay must not change."""
    kwargs = {"weight": weight, "bias": bias, "training": True, "eps": epsilon}
    return Call(torch.nn.functional.batch_norm, "batch_norm", (x, None, None), kwargs, call.module)
