"""Means, sums, norms and other functions of all entries along some dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, by_rule, rule
from sigprop.capture.fields.norms import centre
from sigprop.capture.fields.pointwise import pointwise
from sigprop.capture.fields.replayed import recorded, replayed
from sigprop.capture.layout import Axis, Layout
from sigprop.capture.record import Call, Field, Statistic, on_meta, result_shape
from sigprop.theory.ops.token_map import TokenMap


@rule("mean", "sum")
def mean(capture: Capture, call: Call, input: Field, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if not isinstance(input, Field):
        return replayed(capture, call)
    rank = len(input.shape)
    places = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    places = sorted(place % rank for place in places)
    stacked = None if keepdim else _of_stacked(capture, call, input, places)
    if stacked is not None:
        return stacked
    axes = [axis for place in places for axis in input.layout.dims[place]]
    layout = _reduced(input.layout, places, keepdim)
    if axes and all(axis.is_position for axis in axes):
        return _pooled(capture, call, input, layout, axes, call.name == "mean")
    count = 1.0 if call.name == "mean" else float(math.prod(axis.size for axis in axes))
    statistic = Statistic(input.base, input.apply, count) if all(not a.is_position for a in axes) else None
    return _statistic(capture, call, input, layout, statistic)


def _of_stacked(capture: Capture, call: Call, input: Field, places: list[int]) -> Any:
    """The sum or the mean of tensors that were stacked; None where something else is summed over."""
    made = input.call
    if made is None or made.name != "stack" or len(places) != 1:
        return None
    tensors, dim = made.args[0], made.kwargs.get("dim", made.args[1] if len(made.args) > 1 else 0)
    if dim % len(input.shape) != places[0]:
        return None
    share = 1.0 if call.name == "sum" else 1.0 / len(tensors)

    def step(function: Any, *given: Any) -> Any:
        made = Call(function, function.__name__, given, {}, call.module)
        return by_rule(capture, made) if made.records else function(*given)  # the batch itself may be among them

    total, *rest = [step(torch.mul, item, share) for item in tensors]
    for item in rest:
        total = step(torch.add, total, item)
    return total


def _pooled(capture: Capture, call: Call, x: Field, layout: Layout, axes: list[Axis], average: bool) -> Field:
    """Mean or sum over some position axes."""
    order = x.layout.order
    rest = [axis for axis in order if axis not in axes]
    groups = torch.arange(math.prod(axis.size for axis in rest)).reshape([axis.size for axis in rest] or [1])
    shape = [axis.size if axis in rest else 1 for axis in order]
    target = groups.reshape(shape).expand([axis.size for axis in order]).flatten()
    matrix = torch.zeros(groups.numel(), len(target), dtype=torch.float64)
    matrix[target, torch.arange(len(target))] = 1.0
    if average:
        matrix = matrix / matrix.sum(1, keepdim=True)
    return capture.field_of(TokenMap(matrix), x, layout, call)


@rule("amax", "amin", "logsumexp", "prod", "std")
def reduction(capture: Capture, call: Call, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Any other reduction: replayed."""
    if not isinstance(input, Field):
        return replayed(capture, call)
    rank = len(input.shape)
    places = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    places = sorted(place % rank for place in places)
    keepdim = len(result_shape(call)) == rank
    return _statistic(capture, call, input, _reduced(input.layout, places, keepdim), None)


@rule("norm", "linalg_vector_norm", "vector_norm", "linalg_norm")
def norm(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Any:
    """The root of the sum of squares over channels."""
    order = kwargs.get("p", kwargs.get("ord", args[0] if args else 2))
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    places = [dim] if isinstance(dim, int) else list(dim) if dim is not None else []
    if not isinstance(input, Field) or order not in (2, 2.0, None, "fro") or not places:
        return replayed(capture, call)
    places = sorted(place % len(input.shape) for place in places)
    axes = [axis for place in places for axis in input.layout.dims[place]]
    if any(axis.is_position for axis in axes):
        return _statistic(capture, call, input, _reduced(input.layout, places, bool(keepdim)), None)
    count = float(math.prod(axis.size for axis in axes))
    inner = Call(_sum_of_squares, "sum", (input, places, keepdim), {}, call.module)
    squares = Statistic(input.base, lambda x: input.apply(x) ** 2, count)
    summed = _statistic(capture, inner, input, _reduced(input.layout, places, keepdim), squares)
    summed.call = inner
    return pointwise(capture, Call(torch.sqrt, "sqrt", (summed,), {}, call.module), summed, torch.sqrt)


def _sum_of_squares(x: Tensor, places: list[int], keepdim: bool) -> Tensor:
    return x.square().sum(places, keepdim=keepdim)


@rule("var")
def var(capture: Capture, call: Call, input: Field, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    places = [dim] if isinstance(dim, int) else list(dim or range(len(input.shape)))
    places = sorted(place % len(input.shape) for place in places)
    axes = [axis for place in places for axis in input.layout.dims[place]]
    layout = _reduced(input.layout, places, len(result_shape(call)) == len(input.shape))
    if any(axis.is_position for axis in axes) or input.function is not None:
        return _statistic(capture, call, input, layout, None)
    return _statistic(capture, call, input, layout, Statistic(centre(capture, input), torch.square))


@rule("var_mean", "std_mean")
def spread_and_mean(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Any:
    """The two calls that it stands for."""
    spread = torch.var if call.name == "var_mean" else torch.std
    dim = kwargs.get("dim", args[0] if args and not isinstance(args[0], bool) else None)
    keepdim = input.shape != () and on_meta(call)[1].dim() == len(input.shape)
    made = []
    for function, given, named in ((spread, call.args, kwargs), (torch.mean, (input, dim), {"keepdim": keepdim})):
        made.append(by_rule(capture, Call(function, function.__name__, given, named, call.module)))
    return tuple(made)


def _reduced(layout: Layout, places: Sequence[int], keepdim: bool) -> Layout:
    dims = tuple(
        () if place in places else dim for place, dim in enumerate(layout.dims) if keepdim or place not in places
    )
    inside = [axis for dim in dims for axis in dim]
    return Layout(dims, tuple(axis for axis in layout.order if axis in inside))


def _statistic(capture: Capture, call: Call, x: Field, layout: Layout, statistic: Statistic | None) -> Field:
    return capture.drawn_field(layout, call, (x,), f"{call.name} over channels sampled", statistic=statistic)


# -- Loss functions: recorded as they are called. What their gradient is, is asked later (see `gradient_start`)


LOSSES = (
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div cosine_embedding_loss triplet_margin_loss hinge_embedding_loss "
    "margin_ranking_loss soft_margin_loss multilabel_margin_loss multilabel_soft_margin_loss multi_margin_loss "
    "poisson_nll_loss gaussian_nll_loss ctc_loss triplet_margin_with_distance_loss"
)


@rule(*LOSSES.split())
def loss(capture: Capture, call: Call, *args: Any, **kwargs: Any) -> Any:
    return recorded(capture, call)
