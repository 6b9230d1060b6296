"""LayerNorm, RMSNorm and GroupNorm, as functions or spelt out with means and roots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.theory import Node
from sigprop.theory.ops.layer_norm import LayerNorm
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.rms_norm import RMSNorm
from sigprop.theory.ops.scale import Scale
from sigprop.trace.broadcast import concrete_field, weight_field
from sigprop.trace.layout import Layout
from sigprop.trace.record import Call, Field, Function, Statistic, Weight
from sigprop.trace.rules import find_rule, rule
from sigprop.trace.rules.views import on_meta, result_shape
from sigprop.trace.rules.weights import of_weights
from sigprop.trace.sampled import Sampled

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture


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
        return of_real(capture, call, function(x, x.shape[x.dim() - count :], eps=epsilon), weight, bias)
    if isinstance(x, Weight):
        x = weight_field(capture, x)
    axes = [axis for dim in x.layout.dims[len(x.shape) - count :] for axis in dim]
    known = all(isinstance(item, Weight) or item is None for item in (weight, bias))
    if any(axis.is_position for axis in axes) or not known:
        from sigprop.trace.rules.fallback import sample

        return sample(capture, call)
    width = math.prod(axis.size for axis in axes)
    groups = x.layout.channels // width
    bound = {}
    if weight is not None:
        bound["weight"] = (weight, width * groups)
    if bias is not None:
        bound["bias"] = (bias, width * groups)
    op = kind(
        gain_second_moment=1.0 if weight is None else weight.distribution.second_moment,
        bias_variance=0.0 if bias is None else bias.distribution.second_moment,
        epsilon=epsilon,
        affine=bool(bound),
    )

    def make(_: Field) -> Node:
        node = x.node if groups == 1 else _group(capture, x.node, width, groups)
        node = capture.apply(op, node, weights=bound)
        return node if groups == 1 else capture.apply(Narrow(1.0, x.layout.channels), node)

    inputs = tuple(item for item in (x, weight, bias) if item is not None)
    made = Field(x.layout, make, sources=x.sources, call=call, inputs=inputs)
    _ = made.node
    return made


def _group(capture: Capture, node: Node, width: int, groups: int) -> Node:
    """One group of channels, which stands for all."""
    seen = node.op.norm_of_groups(groups) if isinstance(node.op, Sampled) else None
    return capture.apply(Narrow(1.0, width, seen), node)


def of_real(
    capture: Capture,
    call: Call,
    values: Tensor,
    weight: Weight | None,
    bias: Weight | None,
    layout: Layout | None = None,
    shape: tuple[int, ...] | None = None,
) -> Any:
    """A norm of the raw input: its numbers are real, and gains and biases follow as the functions they are."""
    result: Any = values if weight is None and bias is None else concrete_field(capture, values, layout)
    for function, name, other in ((torch.mul, "mul", weight), (torch.add, "add", bias)):
        if other is not None:
            given = other
            if shape is not None:
                given = of_weights(capture, Call(torch.reshape, "reshape", (other, shape), {}, call.module))
            step, apply = Call(function, name, (result, given), {}, call.module), find_rule(name)
            assert apply is not None
            result = apply(capture, step, result, given)
            result.call = step
    return result


# -- spelt out


@rule("mean", "sum")
def mean(capture: Capture, call: Call, input: Field, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    from sigprop.trace.rules.fallback import sample
    from sigprop.trace.rules.pooling import pooled

    if not isinstance(input, Field):
        return sample(capture, call)
    rank = len(input.shape)
    places = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    places = sorted(place % rank for place in places)
    axes = [axis for place in places for axis in input.layout.dims[place]]
    layout = reduced(input.layout, places, keepdim)
    if axes and all(axis.is_position for axis in axes):
        return pooled(capture, call, input, layout, axes, call.name == "mean")
    count = 1.0 if call.name == "mean" else float(math.prod(axis.size for axis in axes))
    statistic = Statistic(input.base, input.apply, count) if all(not a.is_position for a in axes) else None
    return _statistic(capture, call, input, layout, statistic)


@rule("amax", "amin", "logsumexp", "prod", "std")
def reduction(capture: Capture, call: Call, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Any other reduction: replayed."""
    from sigprop.trace.rules.fallback import sample

    if not isinstance(input, Field):
        return sample(capture, call)
    rank = len(input.shape)
    places = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    places = sorted(place % rank for place in places)
    keepdim = len(result_shape(call)) == rank
    return _statistic(capture, call, input, reduced(input.layout, places, keepdim), None)


@rule("norm", "linalg_vector_norm", "vector_norm", "linalg_norm")
def norm(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Any:
    """The root of the sum of squares over channels."""
    from sigprop.trace.rules.elementwise import pointwise
    from sigprop.trace.rules.fallback import sample

    order = kwargs.get("p", kwargs.get("ord", args[0] if args else 2))
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    places = [dim] if isinstance(dim, int) else list(dim) if dim is not None else []
    if not isinstance(input, Field) or order not in (2, 2.0, None, "fro") or not places:
        return sample(capture, call)
    places = sorted(place % len(input.shape) for place in places)
    axes = [axis for place in places for axis in input.layout.dims[place]]
    if any(axis.is_position for axis in axes):
        return _statistic(capture, call, input, reduced(input.layout, places, bool(keepdim)), None)
    count = float(math.prod(axis.size for axis in axes))
    inner = Call(_sum_of_squares, "sum", (input, places, keepdim), {}, call.module)
    squares = Statistic(input.base, lambda x: input.apply(x) ** 2, count)
    summed = _statistic(capture, inner, input, reduced(input.layout, places, keepdim), squares)
    summed.call = inner
    return pointwise(capture, Call(torch.sqrt, "sqrt", (summed,), {}, call.module), summed, torch.sqrt)


def _sum_of_squares(x: Tensor, places: list[int], keepdim: bool) -> Tensor:
    return x.square().sum(places, keepdim=keepdim)


@rule("var")
def var(capture: Capture, call: Call, input: Field, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    places = [dim] if isinstance(dim, int) else list(dim or range(len(input.shape)))
    places = sorted(place % len(input.shape) for place in places)
    axes = [axis for place in places for axis in input.layout.dims[place]]
    layout = reduced(input.layout, places, len(result_shape(call)) == len(input.shape))
    if any(axis.is_position for axis in axes) or input.function is not None:
        return _statistic(capture, call, input, layout, None)
    return _statistic(capture, call, input, layout, Statistic(_centre(capture, input), torch.square))


@rule("var_mean", "std_mean")
def spread_and_mean(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Any:
    """The two calls that it stands for."""
    spread = torch.var if call.name == "var_mean" else torch.std
    dim = kwargs.get("dim", args[0] if args and not isinstance(args[0], bool) else None)
    keepdim = input.shape != () and on_meta(call)[1].dim() == len(input.shape)
    made = []
    for function, given, named in ((spread, call.args, kwargs), (torch.mean, (input, dim), {"keepdim": keepdim})):
        step, apply = Call(function, function.__name__, given, named, call.module), find_rule(function.__name__)
        assert apply is not None
        made.append(apply(capture, step, *given, **named))
        made[-1].call = step
    return tuple(made)


def reduced(layout: Layout, places: Sequence[int], keepdim: bool) -> Layout:
    dims = tuple(
        () if place in places else dim for place, dim in enumerate(layout.dims) if keepdim or place not in places
    )
    inside = [axis for dim in dims for axis in dim]
    return Layout(dims, tuple(axis for axis in layout.order if axis in inside))


def _statistic(capture: Capture, call: Call, x: Field, layout: Layout, statistic: Statistic | None) -> Field:
    return Field(
        layout,
        lambda made: capture.sampled(made, f"{call.name} over channels sampled"),
        sources=x.sources,
        statistic=statistic,
        call=call,
        inputs=(x,),
    )


def _power(function: Function, order: int) -> float | None:
    """`k` such that the function is `k x^order`, or None."""
    points = torch.tensor([1.0, 2.0, -3.0, 0.5], dtype=torch.float64)
    values = function(points)
    factor = float(values[0])
    return factor if factor and torch.allclose(values, factor * points**order, rtol=1e-6) else None


def _centre(capture: Capture, x: Field) -> Field:
    """`x` minus its own average over channels; one record for each `x`."""
    found = getattr(x.base, "_centred_twin", None)
    if found is None:
        call = Call(_subtract_mean, "sub", (x.base,), {}, capture.module)
        found = Field(
            x.base.layout, lambda made: capture.sampled(made, "centred"), x.sources, centred=x.base, call=call
        )
        x.base._centred_twin = found  # type: ignore[attr-defined]
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
    made = _centre(capture, x)
    made.call, made.layout, made.inputs = call, x.layout, (x,)
    return made


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

    groups = x.layout.channels // width
    node = target.node if groups == 1 else _group(capture, target.node, width, groups)
    node = capture.apply(kind(epsilon=epsilon, affine=False), node)
    if groups > 1:
        node = capture.apply(Narrow(1.0, x.layout.channels), node)
    if abs(scale - 1.0) > 1e-6:
        node = capture.apply(Scale(scale), node)
    return Field(x.layout, lambda _: node, sources=x.sources, call=call, inputs=(x,))


def _norm_width(x: Layout, statistic: Layout) -> int:
    left = [axis for dim in statistic.dims for axis in dim if not axis.is_position]
    own = [axis for dim in x.dims for axis in dim if not axis.is_position and axis not in left]
    return max(1, math.prod(axis.size for axis in own))
