"""Means, sums, norms and other functions of all entries along some dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, by_rule, rule
from sigprop.capture.layout import Axis, Layout, places_along
from sigprop.capture.record import Call, Field, Statistic, on_meta, result_shape
from sigprop.capture.rules.normalization import centre
from sigprop.capture.rules.pointwise import pointwise
from sigprop.capture.rules.replayed import of_weights, recorded, replayed
from sigprop.theory.ops.token_map import TokenMap


@rule("mean", "sum")
def mean(capture: Capture, call: Call, input: Field, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if not isinstance(input, Field):
        return replayed(capture, call)
    places, axes, layout = _over(input, dim, keepdim)
    stacked = None if keepdim else _of_stacked(capture, call, input, places)
    if stacked is not None:
        return stacked
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
    target = places_along(x.layout.order, [axis for axis in x.layout.order if axis not in axes])
    matrix = torch.zeros(int(target.max()) + 1, len(target), dtype=torch.float64)
    matrix[target, torch.arange(len(target))] = 1.0
    if average:
        matrix = matrix / matrix.sum(1, keepdim=True)
    return capture.field_of(TokenMap(matrix), x, layout, call)


@rule("embedding_bag")
def embedding_bag(capture: Capture, call: Call, input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows of a table, added up or averaged over each row of ids; anything else is a function of the weight."""
    mode = args[4] if len(args) > 4 else kwargs.get("mode", "mean")
    others = [item for place, item in enumerate(args) if place in (0, 6)] + [
        kwargs.get(name) for name in ("offsets", "per_sample_weights", "padding_idx")
    ]
    if mode not in ("mean", "sum") or any(item is not None for item in others) or input.dim() != 2:
        return of_weights(capture, call)
    rows = by_rule(capture, Call(torch.nn.functional.embedding, "embedding", (input, weight), {}, call.module))
    return by_rule(capture, Call(getattr(torch, mode), mode, (rows, 1), {}, call.module))


@rule("amax", "amin", "logsumexp", "prod", "std")
def reduction(capture: Capture, call: Call, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Any other reduction: replayed."""
    if not isinstance(input, Field):
        return replayed(capture, call)
    keepdim = len(result_shape(call)) == len(input.shape)
    return _statistic(capture, call, input, _over(input, dim, keepdim)[2], None)


@rule("norm", "linalg_vector_norm", "vector_norm", "linalg_norm")
def norm(capture: Capture, call: Call, input: Field, *args: Any, **kwargs: Any) -> Any:
    """The root of the sum of squares over channels."""
    order = kwargs.get("p", kwargs.get("ord", args[0] if args else 2))
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    if not isinstance(input, Field) or order not in (2, 2.0, None, "fro") or dim in (None, (), []):
        return replayed(capture, call)
    places, axes, layout = _over(input, dim, bool(keepdim))
    if any(axis.is_position for axis in axes):
        return _statistic(capture, call, input, layout, None)
    count = float(math.prod(axis.size for axis in axes))
    inner = Call(_sum_of_squares, "sum", (input, places, keepdim), {}, call.module)
    squares = Statistic(input.base, lambda x: input.apply(x) ** 2, count)
    summed = _statistic(capture, inner, input, layout, squares)
    summed.call = inner
    return pointwise(capture, Call(torch.sqrt, "sqrt", (summed,), {}, call.module), summed, torch.sqrt)


def _sum_of_squares(x: Tensor, places: list[int], keepdim: bool) -> Tensor:
    return x.square().sum(places, keepdim=keepdim)


@rule("var")
def var(capture: Capture, call: Call, input: Field, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    _, axes, layout = _over(input, None if dim in ((), []) else dim, len(result_shape(call)) == len(input.shape))
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


def _over(x: Field, dim: Any, keepdim: bool) -> tuple[list[int], list[Axis], Layout]:
    """The dimensions that are reduced, all where none is named, their axes, and the layout that is left."""
    dims, rank = x.layout.dims, len(x.shape)
    places = sorted(place % rank for place in (range(rank) if dim is None else [dim] if isinstance(dim, int) else dim))
    left = tuple(() if place in places else dim for place, dim in enumerate(dims) if keepdim or place not in places)
    inside = [axis for dim in left for axis in dim]
    order = tuple(axis for axis in x.layout.order if axis in inside)
    return places, [axis for place in places for axis in dims[place]], Layout(left, order)


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
