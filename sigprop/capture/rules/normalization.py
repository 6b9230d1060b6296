"""LayerNorm and RMSNorm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, by_rule, rule
from sigprop.capture.ensemble import parts_of_sources, records_between
from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Layout, of_roles, places_along
from sigprop.capture.record import Call, Field, Function, Weight, few_entries
from sigprop.capture.rules.operands import bound_to, concrete_field, weight_field
from sigprop.capture.rules.pointwise import functions_of_parts, side_by_side_again
from sigprop.capture.rules.replayed import of_weights, replayed
from sigprop.graph.graph import Node
from sigprop.theory.drawing import drawn_rows, root_of
from sigprop.theory.ops.batch_norm import FiniteBatchNorm
from sigprop.theory.ops.group_norm import GroupNorm
from sigprop.theory.ops.layer_norm import LayerNorm, RMSNorm
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.scale import Scale

FEW_DIMENSIONS = 8.0
"""Independent directions of a channel over a batch, up to which what is behind a norm over it is drawn."""
MOST_DRAWN, CHANNELS_DRAWN = 256, 512
"""Positions up to which it is asked how much channels behind a function differ, and channels that tell it."""


@rule("layer_norm")
def layer_norm(
    capture: Capture,
    call: Call,
    input: Field,
    normalized_shape: Sequence[int],
    weight: Weight | None = None,
    bias: Weight | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    return _norm(capture, call, input, len(normalized_shape), LayerNorm, eps, weight, bias)


@rule("rms_norm")
def rms_norm(
    capture: Capture,
    call: Call,
    input: Field,
    normalized_shape: Sequence[int],
    weight: Weight | None = None,
    eps: float | None = None,
) -> Any:
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return _norm(capture, call, input, len(normalized_shape), RMSNorm, eps, weight, None)


def _norm(
    capture: Capture,
    call: Call,
    x: Field,
    count: int,
    kind: type[LayerNorm],
    epsilon: float,
    weight: Weight | None,
    bias: Weight | None,
) -> Any:
    if isinstance(x, Tensor):
        function = torch.rms_norm if kind is RMSNorm else torch.layer_norm
        return _of_real(capture, call, function(x, x.shape[x.dim() - count :], eps=epsilon), weight, bias)
    if isinstance(x, Weight):
        x = weight_field(capture, x)
    axes = [axis for dim in x.layout.dims[len(x.shape) - count :] for axis in dim]
    known = all(isinstance(item, Weight) or item is None for item in (weight, bias))
    if any(axis.is_position for axis in axes) or not known:
        return replayed(capture, call)
    width = math.prod(axis.size for axis in axes)
    if x.base.is_drawn:
        return _drawn(capture, call, width)
    channels = x.layout.channels
    told, bound = _affine(weight, bias, channels // width)
    op = kind(epsilon=epsilon, affine=bool(bound), **told)
    make = lambda _: _of_groups(capture, op, x.node, width, channels, bound)  # noqa: E731
    inputs = tuple(item for item in (x, weight, bias) if item is not None)
    made = Field(x.layout, make, sources=x.sources, call=call, inputs=inputs)
    _ = made.node
    return made


FEWEST = 32
"""Channels of a group that a rule follows; those of fewer are drawn."""


@rule("group_norm")
def group_norm(
    capture: Capture,
    call: Call,
    input: Any,
    num_groups: int,
    weight: Weight | None = None,
    bias: Weight | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    if isinstance(input, Tensor):
        values = torch.group_norm(input, num_groups, eps=eps)
        return _of_real(capture, call, values, weight, bias, image=True)
    known = isinstance(input, Field) and all(isinstance(item, Weight) or item is None for item in (weight, bias))
    few = not known or input.shape[1] // num_groups < FEWEST or input.base.is_drawn
    if few or not _is_image(input.layout):
        return _replayed(capture, call, input.shape, num_groups)
    told, bound = _affine(weight, bias)
    op = GroupNorm(epsilon=eps, affine=bool(bound), image=_images(input.layout), **told)
    return capture.field_of(op, input, input.layout, call, bound)


@rule("instance_norm")
def instance_norm(capture: Capture, call: Call, input: Any, *_: Any, **__: Any) -> Any:
    return _replayed(capture, call, input.shape, input.shape[1])


def _replayed(capture: Capture, call: Call, shape: tuple[int, ...], groups: int) -> Any:
    """Drawn, and so is what follows it where a group has few entries or is one channel: then its sums over positions
    are fixed, which a Gaussian's are not."""
    made = _drawn(capture, call, math.prod(shape[1:]) // groups)
    if isinstance(made, Field) and groups == shape[1]:
        made.of_few = math.prod(shape[2:])
    return made


def _drawn(capture: Capture, call: Call, entries: int) -> Any:
    """A norm over so many entries, drawn."""
    made = replayed(capture, call)
    if isinstance(made, Field):
        made.of_few = few_entries(entries)
    return made


def _is_image(layout: Layout) -> bool:
    """Channels second, positions everywhere else."""
    others = [axis for place, dim in enumerate(layout.dims) if place != 1 for axis in dim]
    return all(axis.is_position for axis in others) and not any(axis.is_position for axis in layout.dims[1])


def _images(layout: Layout) -> Tensor:
    """Which image each row of the kernel belongs to."""
    return places_along(layout.order, [a for a in layout.order if a in layout.dims[0] or a.role == BATCH])


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
        return _of_real(capture, call, values, weight, bias, image=True)
    if not isinstance(input, Field) or not all(isinstance(item, Weight) or item is None for item in (weight, bias)):
        return replayed(capture, call)
    if training or running_mean is None:
        return _of_batch(capture, call, input, weight, bias, eps)
    root = (running_var.double() + eps).rsqrt()
    steps = (torch.sub, running_mean), (torch.mul, root), (torch.mul, weight), (torch.add, bias)
    return _spelt_out(capture, call, input, steps, _channel_shape(input))


def _of_batch(
    capture: Capture, call: Call, x: Field, weight: Weight | None, bias: Weight | None, epsilon: float
) -> Any:
    """The theory's BatchNorm: every position is a sample."""
    channels = x.layout.dims[1]
    others = [axis for place, dim in enumerate(x.layout.dims) if place != 1 for axis in dim]
    if any(axis.is_position for axis in channels) or any(not axis.is_position for axis in others):
        return replayed(capture, call)
    if parts := functions_of_parts(capture, x):
        return _of_parts(capture, call, x.base, parts, weight, bias, epsilon)
    told, bound = _affine(weight, bias)
    call, few = _stateless(call, x, weight, bias, epsilon), few_entries(x.layout.positions)
    few = few or _few_dimensions(capture, x)
    uneven = _uneven_channels(capture, x)
    if x.base.is_drawn or _scales_channels(capture, x) or uneven:
        inputs = [item for item in (x, weight, bias) if item is not None]
        why = "BatchNorm of channels that are not Gaussian"
        return capture.drawn_field(x.layout, call, inputs, why, is_drawn=True, of_few=uneven)
    return capture.field_of(FiniteBatchNorm(epsilon=epsilon, **told), x, x.layout, call, bound, of_few=few)


def _scales_channels(capture: Capture, x: Field) -> bool:
    """Whether each channel has a random factor of its own, the same at all positions, inside a function."""
    if x.is_source:
        return False
    weights = (item for item in records_between(x, parts_of_sources(x)) if isinstance(item, Weight))
    factors = (item for item in weights if math.prod(item.shape) == max(item.shape, default=1) == x.layout.channels)
    return any(capture.states.law(item).variance > 0.0 for item in factors)


def _few_dimensions(capture: Capture, x: Field) -> int:
    """In how many directions the positions of a channel vary, where they are so few that what is normalized is far from
    Gaussian: a window of three numbers, a smooth image. Zero for any other."""
    kernel = capture.states.signal(x.node).kernel.centred().dense()
    spread = float(kernel.values.square().sum())
    count = float(kernel.diagonal.sum()) ** 2 / spread if spread > 0.0 else math.inf
    return math.ceil(count) if count < FEW_DIMENSIONS else 0


def _uneven_channels(capture: Capture, x: Field) -> int:
    """In how few directions Gaussian channels would vary whose variances over the batch differ as those of a function
    do: where examples are nearly one, a ReLU leaves most channels nothing to normalize. Zero for many."""
    if x.function is None or x.slope is not None or x.layout.positions > MOST_DRAWN:
        return 0
    signal = capture.states.signal(x.base.node)
    generator = torch.Generator().manual_seed(capture.graph.loss_seed)
    rows = drawn_rows(root_of(signal.covariance.dense().values), CHANNELS_DRAWN, generator) + signal.mean[:, None]
    found = x.apply(rows).var(0)
    count = 2.0 * float(found.mean()) ** 2 / max(float(found.var()), 1e-300)
    return math.ceil(count) if count < FEW_DIMENSIONS else 0


def _of_parts(
    capture: Capture,
    call: Call,
    whole: Field,
    parts: list[Field],
    weight: Weight | None,
    bias: Weight | None,
    epsilon: float,
) -> Any:
    """Tensors side by side as channels are normalized each by itself."""
    made, start = [], 0

    def cut(item: Weight | None, count: int) -> Weight | None:
        inner = Call(torch.narrow, "narrow", (item, 0, start, count), {}, call.module)
        return None if item is None else of_weights(capture, inner)

    for part in parts:
        count = part.shape[1]
        made.append(_of_batch(capture, call, part, cut(weight, count), cut(bias, count), epsilon))
        start += count
    return side_by_side_again(capture, whole, made)


def _stateless(call: Call, x: Field, weight: Weight | None, bias: Weight | None, epsilon: float) -> Call:
    """The same call without running statistics, which a replay must not change."""
    kwargs = {"weight": weight, "bias": bias, "training": True, "eps": epsilon}
    return Call(torch.nn.functional.batch_norm, "batch_norm", (x, None, None), kwargs, call.module)


# -- what all share: gains and biases, numbers of the raw input, images


def _of_real(
    capture: Capture, call: Call, values: Tensor, weight: Weight | None, bias: Weight | None, image: bool = False
) -> Any:
    """A norm of the raw input: its numbers are real, and gains and biases follow as the functions they are."""
    layout, shape = (_image_layout(values), _channel_shape(values)) if image else (None, None)
    result: Any = values if weight is None and bias is None else concrete_field(capture, values, layout)
    return _spelt_out(capture, call, result, ((torch.mul, weight), (torch.add, bias)), shape)


def _spelt_out(
    capture: Capture, call: Call, result: Any, steps: Iterable[tuple[Any, Any]], shape: tuple[int, ...] | None
) -> Any:
    """Sums and products with real numbers and with weights, where there are some, in a shape."""
    for function, other in steps:
        if isinstance(other, Weight) and shape is not None:
            other = of_weights(capture, Call(torch.reshape, "reshape", (other, shape), {}, call.module))
        elif isinstance(other, Tensor):
            other = other.detach().float().reshape(shape or other.shape)
        if other is not None:
            result = by_rule(capture, Call(function, function.__name__, (result, other), {}, call.module))
    return result


def _affine(weight: Weight | None, bias: Weight | None, uses: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an op is told of gain and bias, and the weights that are bound to it, `uses` times each."""
    bound = bound_to(uses, weight=weight, bias=bias)
    told: dict[str, float] = {}
    if weight is not None:
        told |= {"gain_second_moment": weight.distribution.second_moment, "gain_mean": weight.distribution.mean}
    if bias is not None:
        told |= {"bias_second_moment": bias.distribution.second_moment, "bias_mean": bias.distribution.mean}
    return told, bound


def _image_layout(values: Tensor) -> Layout:
    """Examples, channels, then positions."""
    return of_roles(values.shape, [BATCH, CHANNEL, *[TOKEN] * (values.dim() - 2)])


def _channel_shape(values: Any) -> tuple[int, ...]:
    """The shape of one number per channel."""
    return (-1, *[1] * (len(values.shape) - 2))


# -- norms spelt out with means and roots


def _of_groups(capture: Capture, op: LayerNorm, node: Node, width: int, channels: int, bound: Any = None) -> Node:
    """A norm of each group of channels, one of which stands for all."""
    if channels == width:
        return capture.apply(op, node, weights=bound)
    one = capture.apply(Narrow(1.0, width, channels // width), node)
    return capture.apply(Narrow(1.0, channels), capture.apply(op, one, weights=bound))


def centre(capture: Capture, x: Field) -> Field:
    """`x` minus its own average over channels; one record for each `x` and layout, as heads have averages each."""
    found = capture.centred.get((x.base, x.layout))
    if found is None:
        call = Call(_subtract_mean, "sub", (x,), {}, capture.module)
        found = capture.drawn_field(x.layout, call, (x,), "centred", centred=x.base)
        capture.centred[x.base, x.layout] = found
    return found


def _subtract_mean(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def centred(capture: Capture, call: Call, x: Field, average: Field) -> Field | None:
    """`x - mean(x)` over channels."""
    statistic = average.statistic
    if statistic is None or average.function is not None or x.function is not None or statistic.field is not x.base:
        return None
    if _power(statistic.function, 1) != 1.0 or statistic.count != 1.0:
        return None
    return centre(capture, x)


def normalized(capture: Capture, call: Call, x: Field, statistic: Field, inverse: bool) -> Field | None:
    """`x` times (or divided by) a function of its own mean square: RMSNorm, or LayerNorm when `x` was centred.

    With `v` the mean square, the factor must be `c / sqrt(v + epsilon)`; both are read off the function.
    """
    found = statistic.statistic
    if found is None or found.field is not x.base or (x.function is not None and x.slope is None):
        return None
    factor = _power(found.function, 2)
    if factor is None:
        return None
    points = torch.tensor([0.5, 1.0, 4.0, 9.0], dtype=torch.float64)
    values = statistic.apply(points * factor * found.count)
    level = values**2 if inverse else values**-2
    slope = float(level[2] - level[1]) / 3.0
    offset = float(level[1]) - slope
    if slope <= 0 or not torch.allclose(level, slope * points + offset, rtol=1e-4, atol=1e-9):
        return None
    scale = (1.0 if x.slope is None else x.slope) / math.sqrt(slope)
    epsilon = max(offset / slope, 0.0)
    epsilon = 0.0 if epsilon < 1e-12 else epsilon
    width = _norm_width(x.layout, statistic.layout)
    target, kind = (x.base.centred, LayerNorm) if x.base.centred is not None else (x.base, RMSNorm)
    assert target is not None
    node = _of_groups(capture, kind(epsilon=epsilon, affine=False), target.node, width, x.layout.channels)
    if abs(scale - 1.0) > 1e-6:
        node = capture.apply(Scale(scale), node)
    return Field(x.layout, lambda _: node, sources=x.sources, call=call, inputs=(x,))


def _norm_width(x: Layout, statistic: Layout) -> int:
    left = [axis for dim in statistic.dims for axis in dim if not axis.is_position]
    own = [axis for dim in x.dims for axis in dim if not axis.is_position and axis not in left]
    return max(1, math.prod(axis.size for axis in own))


def _power(function: Function, order: int) -> float | None:
    """`k` such that the function is `k x^order`, or None."""
    points = torch.tensor([1.0, 2.0, -3.0, 0.5], dtype=torch.float64)
    values = function(points)
    factor = float(values[0])
    return factor if factor and torch.allclose(values, factor * points**order, rtol=1e-6) else None
