"""Linear maps with parameters: linear, matmul, addmm, bmm, einsum.

Every one is an einsum of a field with a weight. Contracted channels are averaged over; contracted positions (patches,
token mixing) are first taken in as channels; what the weight brings new is a channel axis, or a token axis when only
positions were contracted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, by_rule, rule
from sigprop.capture.layout import CHANNEL, KEY, TOKEN, Axis, Dim, Layout, arranged, fresh, places_along, second_axis
from sigprop.capture.record import Call, Field, Weight
from sigprop.capture.rules.attention import attended, scored
from sigprop.capture.rules.operands import as_field, picks_rows
from sigprop.capture.rules.pointwise import is_odd, pointwise
from sigprop.capture.rules.replayed import replayed
from sigprop.capture.rules.views import viewed
from sigprop.distributions import CENTRED
from sigprop.graph.graph import Node
from sigprop.graph.tied import tied
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.modulate import Modulate
from sigprop.theory.ops.positions_to_channels import ChannelsToPositions, PositionsToChannels
from sigprop.theory.ops.token_map import TokenLinear

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@rule("linear")
def linear(capture: Capture, call: Call, input: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(weight, Weight):
        return replayed(capture, call)
    if bias is not None and (not isinstance(bias, Weight) or is_odd(bias.distribution)):
        made = by_rule(capture, Call(torch.nn.functional.linear, "linear", (input, weight), {}, call.module))
        return by_rule(capture, Call(torch.add, "add", (made, bias), {}, call.module))
    x = as_field(capture, input)
    if parts := _rows_apart(capture, call, weight, bias):
        made = [by_rule(capture, replace(call, args=(x, *part), kwargs={})) for part in parts]
        return by_rule(capture, Call(torch.cat, "cat", (made, -1), {}, call.module))
    front = LETTERS[: len(x.shape) - 1]
    return contract(capture, call, x, front + "y", weight, "zy", front + "z", bias)


def _rows_apart(capture: Capture, call: Call, weight: Weight, bias: Weight | None) -> list[tuple[Any, Any]]:
    """Weight and bias of each part of the outputs, where either was put together of several: each receives what its own
    outputs do, as the biases of queries and of values."""
    joined = [_parts(item) for item in (weight, bias)]
    sizes = [[part.shape[0] for part in parts] for parts in joined if parts]
    if not sizes or sizes[0] != sizes[-1]:
        return []
    stops = list(itertools.accumulate(sizes[0]))
    return [
        tuple(
            parts[number] if parts else _rows(capture, call, item, stop - sizes[0][number], stop)
            for item, parts in zip((weight, bias), joined, strict=True)
        )
        for number, stop in enumerate(stops)
    ]


def _parts(weight: Weight | None) -> list[Any]:
    """Those that a weight was put together of, one after another along its outputs."""
    call = None if weight is None else weight.call
    if call is None or call.name != "cat" or any(call.args[1:]) or any(call.kwargs.values()):
        return []
    return list(call.args[0])


def _rows(capture: Capture, call: Call, item: Weight | None, start: int, stop: int) -> Any:
    if item is None:
        return None
    return replayed(capture, Call(torch.Tensor.__getitem__, "getitem", (item, slice(start, stop)), {}, call.module))


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(capture: Capture, call: Call, input: Any, other: Any) -> Any:
    if isinstance(input, Field) and isinstance(other, Field):
        return _fields(capture, call, input, other)
    if isinstance(other, Weight) and not (isinstance(input, Weight) and len(other.shape) > 2):
        x = as_field(capture, input)
        front = LETTERS[: len(x.shape) - 1]
        if len(other.shape) == 1:
            return contract(capture, call, x, front + "y", other, "y", front)
        shared = front[len(front) - len(other.shape) + 1 : -1] if len(other.shape) > 2 else ""
        if len(shared) == len(other.shape) - 2:
            return contract(capture, call, x, front + "y", other, shared + "yz", front + "z")
    if isinstance(input, Weight) and isinstance(other, (Field, Tensor)) and len(other.shape) > 1:
        x = as_field(capture, other)
        front = LETTERS[: len(x.shape) - 2]
        shared = front[len(front) - len(input.shape) + 2 :] if len(input.shape) > 2 else ""
        return contract(capture, call, x, front + "yk", input, shared + "zy", front + "zk")
    if (isinstance(input, Tensor) and isinstance(other, Field)) or (
        isinstance(input, Field) and isinstance(other, Tensor)
    ):
        return _fixed(capture, call, input, other)
    return replayed(capture, call)


@rule("_sparse_mm", "sparse_mm", "spmm")
def sparse(capture: Capture, call: Call, first: Any, second: Any) -> Any:
    """A sparse matrix of real numbers as the dense one that it is."""
    dense = [item.to_dense() if isinstance(item, Tensor) and item.is_sparse else item for item in (first, second)]
    return by_rule(capture, Call(torch.matmul, "matmul", tuple(dense), {}, call.module))


def _fields(capture: Capture, call: Call, first: Field, second: Field) -> Any:
    if len(first.shape) < 2 or len(second.shape) < 2:
        return replayed(capture, call)
    found = attended(capture, call, first, second)
    return found if found is not None else scored(capture, call, first, second)


def _fixed(capture: Capture, call: Call, input: Any, other: Any) -> Any:
    """A fixed matrix on a field, kept as a replay."""
    if len(input.shape) < 2 or len(other.shape) < 2:
        return replayed(capture, call, "product with fixed numbers")
    front = LETTERS[: max(len(input.shape), len(other.shape)) - 2]
    labels = [front[len(front) - len(item.shape) + 2 :] + end for item, end in ((input, "xy"), (other, "yz"))]
    return product(capture, call, [input, other], labels, front + "xz", "product with fixed numbers")


@rule("addmm", "baddbmm")
def addmm(
    capture: Capture, call: Call, input: Any, *args: Any, beta: float = 1.0, alpha: float = 1.0, **kwargs: Any
) -> Any:
    mat1, mat2 = (*args, *(kwargs[key] for key in ("mat1", "batch1", "mat2", "batch2") if key in kwargs))
    if isinstance(input, Weight) and isinstance(mat2, Weight) and call.name == "addmm" and beta == alpha == 1:
        x = as_field(capture, mat1)
        return contract(capture, call, x, "xy", mat2, "yz", "xz", input)
    product = by_rule(capture, Call(torch.matmul, "matmul", (mat1, mat2), {}, call.module))
    scaled = Call(_scaled_sum, "add", (input, product, beta, alpha), {}, call.module)
    if beta == 0:
        times = Call(torch.mul, "mul", (product, alpha), {}, call.module)
        return pointwise(capture, times, product, lambda x: x * alpha, slope=float(alpha))
    if any(a.role == "key" for dim in product.layout.dims for a in dim) or beta != 1 or alpha != 1:
        return replayed(capture, scaled)
    return by_rule(capture, Call(torch.add, "add", (input, product), {}, call.module))


def _scaled_sum(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    return beta * input + alpha * product


@rule("einsum")
def einsum(capture: Capture, call: Call, equation: Any, *operands: Any) -> Any:
    if not isinstance(equation, str):
        return replayed(capture, call)
    items = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else list(operands)
    equation = _spelt_out(equation.replace(" ", ""), items)
    left, _, right = equation.partition("->")
    labels = left.split(",")
    if "." in equation or len(items) != 2 or not right:
        return _einsum_fallback(capture, call, equation, items)
    (a, la), (b, lb) = zip(items, labels, strict=True)
    for (item, own), others in (((a, la), lb), ((b, lb), la)):
        if isinstance(item, Field) and _mixes_positions(item, own, others, right):
            return product(capture, call, items, labels, right)
    if isinstance(b, Weight):
        return contract(capture, call, as_field(capture, a), la, b, lb, right)
    if isinstance(a, Weight):
        return contract(capture, call, as_field(capture, b), lb, a, la, right)
    return _einsum_fallback(capture, call, equation, items)


def _mixes_positions(item: Field, own: str, others: str, right: str) -> bool:
    """Whether a weight sums over positions (the streams of hyper-connections) and leaves channels alone."""
    summed = [item.layout.dims[own.index(c)] for c in own if c in others and c not in right]
    kept = [item.layout.dims[own.index(c)] for c in own if c not in others]
    channels = any(not axis.is_position for dim in kept for axis in dim)
    return bool(summed) and channels and all(axis.is_position for dim in summed for axis in dim)


def _spelt_out(equation: str, items: list) -> str:
    """The equation with `...` replaced by letters it does not use, where all operands have as many."""
    labels = equation.partition("->")[0].split(",")
    if "..." not in equation or len(labels) != len(items):
        return equation
    counts = {len(x.shape) - len(c.replace("...", "")) for x, c in zip(items, labels, strict=True) if "..." in c}
    free = [c for c in LETTERS.upper() if c not in equation]
    return equation.replace("...", "".join(free[: counts.pop()])) if len(counts) == 1 else equation


def _einsum_fallback(capture: Capture, call: Call, equation: str, items: list) -> Any:
    """Two fields: as a matrix product of permuted views. Anything else: replayed."""
    left, _, right = equation.replace(" ", "").partition("->")
    labels = left.split(",")
    if not right or "." in equation:
        return replayed(capture, call)
    if len(items) == 2 and all(isinstance(item, Field) for item in items):
        la, lb = labels
        both = [c for c in la if c in lb]
        shared, summed = [c for c in both if c in right], [c for c in both if c not in right]
        only_a, only_b = [c for c in la if c not in lb], [c for c in lb if c not in la]
        if len(summed) == len(only_b) == 1 and only_a and set(only_a + only_b) <= set(right):
            front = [*only_a[:-1], *shared]
            first = _arranged(items[0], la, [*front, only_a[-1], *summed], call)
            second = _arranged(items[1], lb, [*front, *summed, *only_b], call)
            inner = Call(torch.matmul, "matmul", (first, second), {}, call.module)
            made = _fields(capture, inner, first, second)
            made.call = inner
            return _arranged(made, [*front, only_a[-1], *only_b], list(right), call)
    return product(capture, call, items, labels, right)


def _arranged(item: Field, labels: Sequence[str], wanted: Sequence[str], call: Call) -> Field:
    """The dimensions of an operand in the wanted order, with a dimension of size one for each it has not."""
    for missing in [c for c in wanted if c not in labels]:
        made = Call(torch.unsqueeze, "unsqueeze", (item, 0), {}, call.module)
        item, labels = viewed(item, item.layout.inserted(0), made), [missing, *labels]
    order = [list(labels).index(c) for c in wanted]
    made = Call(torch.Tensor.permute, "permute", (item, order), {}, call.module)
    return viewed(item, item.layout.permuted(order), made)


def product(capture: Capture, call: Call, items: list, labels: list[str], result: str, reason: str = "") -> Any:
    """Any product of tensors, replayed: each label of the result has the axes of the first field that has it.

    What only real tensors, weights and choices bring is a token axis where positions were summed over, else a channel
    axis; tokens that meet tokens of the same axis are keys.
    """
    fields = [(item, names) for item, names in zip(items, labels, strict=True) if isinstance(item, Field)]
    summed = [a for x, names in fields for c, d in zip(names, x.layout.dims, strict=True) if c not in result for a in d]
    role = TOKEN if summed and all(axis.is_position for axis in summed) else CHANNEL
    if role == TOKEN and not all(item.is_choice for item, _ in fields):
        fields = [(item, names if not item.is_choice else "") for item, names in fields]
    dims: list[Dim] = []
    for c in result:
        sizes = {item.shape[names.index(c)] for item, names in zip(items, labels, strict=True) if c in names}
        mine = [x.layout.dims[names.index(c)] for x, names in fields if c in names and x.layout.dims[names.index(c)]]
        seen = [axis for dim in dims for axis in dim]
        dims.append(tuple(second_axis(a) if a in seen else a for a in mine[0]) if mine else fresh(max(sizes), role))
    layout = arranged(dims, list(dict.fromkeys(axis for x, _ in fields for axis in x.layout.order)))
    records = [item for item in items if isinstance(item, (Field, Weight))]
    return capture.drawn_field(layout, call, records, reason or f"{call.name} sampled on the predicted state")


def contract(
    capture: Capture,
    call: Call,
    x: Field,
    labels: str,
    weight: Weight,
    weight_labels: str,
    result: str,
    bias: Weight | None = None,
) -> Field:
    """`einsum(labels, weight_labels -> result)` of a field and a weight with independent zero-mean entries."""
    if picks_rows(x, weight):
        return replayed(capture, call)
    dims = dict(zip(labels, x.layout.dims, strict=True))
    sizes = dict(zip(labels, x.shape, strict=True)) | dict(zip(weight_labels, weight.shape, strict=True))
    summed = [c for c in labels if c in weight_labels and c not in result]
    shared = [c for c in labels if c in weight_labels and c in result]
    new = [c for c in weight_labels if c not in labels and c in result]
    axes = [axis for c in summed for axis in dims[c]]
    taken = [axis for axis in axes if axis.is_position]
    mixed = taken and len(taken) == len(axes) and x.layout.channels > 1  # without channels, tokens are features
    role = TOKEN if mixed else CHANNEL
    added = {c: fresh(sizes[c], role) for c in new}
    kept = tuple(axis for axis in x.layout.order if axis not in taken)
    layout = Layout(
        tuple(added[c] if c in added else dims[c] for c in result),
        kept + tuple(axis for c in new for axis in added[c] if role == TOKEN),
    )
    inputs = (x, weight) if bias is None else (x, weight, bias)
    if any(axis.role == KEY and axis not in axes for dim in x.layout.dims for axis in dim):
        return capture.drawn_field(layout, call, inputs, "a weight that pairs of positions share, sampled")
    sent = role == CHANNEL and _is_sent(capture, x)
    if sent and math.prod(weight.shape) <= DRAWN:
        return capture.drawn_field(layout, call, inputs, "what a choice lets through, sampled")
    node = _taken_in(capture, x, taken, axes)
    node = _apart(capture, node, kept, [axis for c in shared for axis in dims[c] if axis.is_position])
    fan_in, fan_out = math.prod(sizes[c] for c in summed), math.prod(sizes[c] for c in new)
    common = [axis for c in shared for axis in dims[c]]
    groups = _channels_of(x.layout, but=[*axes, *common])
    apart = math.prod(axis.size for axis in common if axis.role == CHANNEL)
    law, matrix = weight.distribution, weight.shape == (fan_out, fan_in)
    given: dict[str, Any] = {"mean": law.mean}
    if bias is not None:
        given |= {"bias_variance": bias.distribution.variance, "bias_mean": bias.distribution.mean}
    if role == TOKEN:
        op, uses = TokenLinear(fan_in, fan_out, law.variance, channels=groups, **given), 1
    else:
        given |= {"centred": matrix and law.kind == CENTRED, "by_rows": matrix and weight_labels[0] in new}
        given |= {"tails": law.tails}
        op, uses = Linear(fan_in, fan_out, law.variance, **given), groups
    bound = {"weight": (weight, fan_in * fan_out * apart * uses)}
    if bias is not None:
        bound["bias"] = (bias, math.prod(bias.shape) * uses)
    node = _linear(capture, op, node, bound, (SENT,) if sent else ())
    if role == TOKEN and fan_out > 1:
        node = capture.apply(ChannelsToPositions(fan_out), node)
    return Field(layout, lambda _: node, call=call, inputs=inputs)


def _taken_in(capture: Capture, x: Field, taken: list[Axis], axes: list[Axis]) -> Node:
    """Contracted positions become channels."""
    if not taken:
        return x.node
    order = list(x.layout.order)
    rest = [axis for axis in order if axis not in taken]
    rows = torch.arange(x.layout.positions).reshape([axis.size for axis in order])
    rows = rows.permute([order.index(axis) for axis in (*rest, *taken)])
    rows = rows.reshape(-1, math.prod(axis.size for axis in taken))
    mixes = len(taken) == len(axes) and x.layout.channels > 1
    return capture.apply(PositionsToChannels(rows, math.prod(axis.size for axis in axes), mixes), x.node)


def _apart(capture: Capture, node: Node, order: tuple[Axis, ...], shared: list[Axis]) -> Node:
    """Positions with weights of their own are independent of each other."""
    if not shared:
        return node
    flat = places_along(order, shared)
    same = (flat[:, None] == flat).double()
    return capture.apply(Modulate(same, torch.ones(len(flat), dtype=torch.float64)), node)


def _channels_of(layout: Layout, but: list[Axis]) -> int:
    """How many independent groups of channels use the same weights."""
    channels = [axis for dim in layout.dims for axis in dim if axis.role == CHANNEL]
    return math.prod(axis.size for axis in channels if axis not in but)


SENT = "functions of what a choice lets through, and of zeros elsewhere"
LET_THROUGH = 0.25
"""Relative variance of squared norms, from which on a choice decides which positions are there at all."""
DRAWN = 1 << 20
"""Entries of a weight that are drawn with such a choice."""


def _is_sent(capture: Capture, x: Field) -> bool:
    """Whether positions are there or zero by a choice, as the tokens of an expert: functions of them see either."""
    if x.is_source or not x.is_choice:
        return False
    return float(capture.states.signal(x.node).fluctuation.norm) > LET_THROUGH * x.layout.channels


def _linear(
    capture: Capture, op: Linear, node: Node, bound: dict[str, tuple[Weight, int]], doubts: tuple[str, ...] = ()
) -> Node:
    """A linear map with the parameters that are bound to it, each with how many entries get the gradient of one."""
    doubts = (*doubts, *capture.states.weights_behind.doubts_of_return(op, bound, node))
    return capture.apply(tied(capture.graph, op, bound["weight"][0]), node, weights=bound, doubts=doubts)
