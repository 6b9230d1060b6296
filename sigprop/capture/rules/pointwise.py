"""Functions of one tensor, entry by entry: they stay functions of it until the state is needed, as one activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, by_rule
from sigprop.capture.ensemble import joined
from sigprop.capture.layout import (
    LARGEST,
    Layout,
    Misaligned,
    as_constant,
    common_layout,
    concrete_kernel,
    concrete_rows,
    layout_like,
    outer_streams,
    with_streams,
)
from sigprop.capture.noise import NOISE
from sigprop.capture.record import Call, Field, Weight, independent, united
from sigprop.capture.rules.operands import aligned, as_field, bound_to, relate_given, weight_sharing
from sigprop.capture.rules.replayed import replayed
from sigprop.distributions import Distribution
from sigprop.errors import InputError, UnsupportedError
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Doubt, Node
from sigprop.graph.shared_parts import IN_STEP, MATTERS
from sigprop.theory import Signal, activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.gain import Gain
from sigprop.theory.ops.modulate import Modulate
from sigprop.theory.ops.product import Product
from sigprop.theory.ops.residual import Residual, SharedResidual, VisitedResidual
from sigprop.theory.ops.scale import Scale

# -- Sums of two tensors, and positions one after another, with what they have in common


def summed(capture: Capture, op: Residual, first: Node, second: Node) -> Node:
    """The sum of two tensors; in doubt where outputs of one weight are large parts of both."""
    op = replace(op, rows_in_branch=_brings_rows(capture, second) and not _brings_rows(capture, first))
    pairs = tuple(capture.states.weights_behind.in_common(first, second))
    doubts = (SumOfUses(first, second, pairs, abs(float(op.skip * op.branch))),) if pairs else ()
    return _added(capture, op, first, second, doubts)


def entangled(capture: Capture, op: Op, first: Node, second: Node) -> bool:
    """Whether a sum or a product of two tensors has no closed form, for what they have in common."""
    parts = capture.states.shared_parts
    if isinstance(op, Residual):
        return parts.beyond(first, second)
    return not parts.reached(first).isdisjoint(parts.reached(second)) or _uses_agree(capture, first, second)


def _uses_agree(capture: Capture, first: Node, second: Node) -> bool:
    """Whether the product of outputs of one weight has a mean that a sum over channels sees."""
    states = capture.states
    found = states.visits.of(first, second) if states.weights_behind.in_common(first, second) else None
    if found is None:
        return False
    one, other = (states.signal(node) for node in (first, second))
    levels = one.kernel.diagonal * other.kernel.diagonal
    return one.width * float((found.diagonal() ** 2).mean()) > MATTERS * float(levels.mean())


def _brings_rows(capture: Capture, node: Node) -> bool:
    """Whether a tensor is a sum with rows of a table among its parts."""
    lookups = capture.graph.lookups
    return bool(lookups) and not lookups.keys().isdisjoint(capture.states.shared_parts.all_above(node))


def have_in_common(capture: Capture, first: Node, second: Node) -> bool:
    """Whether two tensors are sums with one part, or with outputs of one weight."""
    parts = capture.states.shared_parts
    return bool(parts.of(first) & parts.of(second)) or bool(capture.states.weights_behind.in_common(first, second))


def side_by_side(capture: Capture, *nodes: Node) -> Node:
    """Positions one after another, with what they have in common."""
    op, inputs = joined(capture.states, nodes)
    return capture.apply(op, *inputs)


def _added(capture: Capture, op: Residual, first: Node, second: Node, doubts: tuple[Doubt, ...]) -> Node:
    """The sum of two tensors, with what they have in common."""
    parts = capture.states.shared_parts
    common = bool(parts.of(first) & parts.of(second))
    if not common and not doubts:
        return capture.apply(op, first, second)
    found = parts.in_common(first, second) if common else []
    pieces = tuple((one, other) for _, one, other in found)
    made = (VisitedResidual if doubts else SharedResidual)(op.skip, op.branch, pieces, rows_in_branch=op.rows_in_branch)
    return capture.apply(made, first, second, *(node for node, _, _ in found), doubts=doubts)


@dataclass(frozen=True)
class SumOfUses:
    """The doubt of a sum in which outputs of one weight are large parts of both summands, `pairs` of them."""

    first: Node
    second: Node
    pairs: tuple[tuple[Node, Node], ...]
    scale: float

    def __call__(self, states: Evaluation, made: Signal) -> str:
        if states.visits.of(self.first, self.second) is not None:
            return ""
        mine, theirs = (_sizes(states, node) for node in (self.first, self.second))
        product = sum(mine.get(one, 0.0) * theirs.get(other, 0.0) for one, other in self.pairs) * self.scale
        return IN_STEP if 2.0 * product > MATTERS * float(made.kernel.diagonal.mean()) else ""


def _sizes(states: Evaluation, node: Node) -> dict[Node, float]:
    """Root of the mean square of what a node holds of each of its parts."""
    found, parts = {}, states.shared_parts
    for part, pieces in parts.pieces(node, parts.ends(node)).items():
        level = states.signal(part).kernel.diagonal
        square = sum(float((item.share**2 * level[item.index]).mean()) for item in pieces)
        found[part] = math.sqrt(max(square, 0.0))
    return found


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
    make = lambda made: _activation_node(capture, made, call if inner is None else None)  # noqa: E731
    made = item.entrywise(make, composed, call, slope=total, statistic=item.statistic, step=function)
    if inner is not None:
        capture.composed.append(made)
    return made


def function_of_one(
    capture: Capture, call: Call, items: Sequence[Any], function: Callable[..., Tensor] | None = None
) -> Field | None:
    """A function of numbers and of functions of one tensor, entry by entry in the same arrangement."""
    fields = [item for item in items if isinstance(item, Field)]
    first = next(iter(fields), None)
    given = [item if isinstance(item, Field) else as_constant(item, first) for item in items]
    if first is None or None in given or any(_arranged(item) != _arranged(first) for item in fields):
        return None
    applied = function or call.function

    def step(*values: Tensor) -> Tensor:
        found = iter(values)
        return applied(*(next(found) if isinstance(item, Field) else values[0].new_tensor(item) for item in given))

    def composed(x: Tensor) -> Tensor:
        return step(*(item.apply(x) for item in fields))

    make, known = lambda item: _activation_node(capture, item, None), {"statistic": first.statistic, "step": step}
    made = first.entrywise(make, composed, call, transparent=False, inputs=tuple(fields), **known)
    capture.composed.append(made)
    return made


def _arranged(item: Field) -> tuple[Any, ...]:
    """Of which tensor entries are functions, and how they are arranged."""
    return item.base, item.layout.dims, item.statistic


def _activation_node(capture: Capture, item: Field, call: Call | None) -> Node:
    assert item.root is not None
    assert item.function is not None
    if item.statistic is not None:
        return capture.sampled(item, "function of a channel statistic")
    if item.slope is not None:
        return capture.apply(Scale(item.slope), item.root.node)
    if parts := functions_of_parts(capture, item, call):
        return side_by_side_again(capture, item.root, parts).node
    if item.root.is_curved and _is_sum(item.root):
        return capture.sampled(item, "function of a sum that is not Gaussian")
    if item.root.is_drawn:
        return capture.sampled(item, "function of what is not Gaussian")
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


def functions_of_parts(capture: Capture, item: Field, call: Call | None = None) -> list[Field]:
    """The same function of each of the tensors that stand side by side as channels in what it is a function of: each
    has a distribution of its own. Empty where nothing stands side by side."""
    if item.base.beside is None:
        return []
    parts = item.base.fields
    return parts if item.function is None else [_function_of(capture, item, part, call) for part in parts]


def _function_of(capture: Capture, item: Field, part: Field, call: Call | None) -> Field:
    own = call if part.function is None else None
    return Field(
        part.layout,
        lambda made: _activation_node(capture, made, own),
        sources=part.sources,
        root=part.base,
        function=lambda x: item.apply(part.apply(x)),
        call=item.call,
        inputs=(part,),
    )


def side_by_side_again(capture: Capture, whole: Field, parts: list[Field]) -> Field:
    """What was made of each of the tensors that stand side by side in `whole`, in their places."""
    return by_rule(capture, Call(torch.cat, "cat", (parts, whole.beside), {}, capture.module))


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


# -- Two operands, entry by entry: sums and products of tensors that share no randomness, gains, fixed factors


def combined(capture: Capture, call: Call, first: Any, second: Any, op: Residual | Product) -> Any:
    """Sum or product of two tensors, at least one of them a field; independent ones have a rule."""
    if not isinstance(first, Field) and not isinstance(second, Field):
        return replayed(capture, call)
    if any(isinstance(item, complex) for item in (first, second)):
        return replayed(capture, call)
    if any(isinstance(x, Field) and (_has_keys(x) or x.layout.positions > LARGEST) for x in (first, second)):
        return replayed(capture, call)
    given = first, second
    first, second = _as_fields(capture, first, second)
    try:
        layout, (own_first, own_second) = common_layout([first.layout, second.layout])
    except Misaligned:
        return replayed(capture, call)
    curved = first.is_curved or second.is_curved or isinstance(op, Product)
    if (curved and not independent(first, second)) or layout.has_keys:
        return replayed(capture, call)
    if isinstance(op, Product) and first.has_gaps and second.has_gaps:
        return replayed(capture, call, LEFT_OUT)
    if isinstance(op, Product) and (streams := outer_streams(layout, own_first, own_second)):
        wide = with_streams(layout, streams)
        return capture.drawn_field(wide, call, (first, second), "outer product of channels sampled")
    try:
        left, right = aligned(capture, first, layout, own_first), aligned(capture, second, layout, own_second)
        if isinstance(op, Residual):
            relate_given(capture, left, right)
        if entangled(capture, op, left, right):
            return replayed(capture, call)
        node = summed(capture, op, left, right) if isinstance(op, Residual) else capture.apply(op, left, right)
    except UnsupportedError:  # a mask of infinities, or a table over pairs of tokens
        return replayed(capture, call)
    spread = any(isinstance(item, Field) and item.layout.channels < layout.channels for item in given)
    gaussian = isinstance(op, Residual) and not (first.is_curved or second.is_curved or spread)
    odd = gaussian and any(isinstance(item, Weight) and is_odd(item.distribution) for item in given)
    drawn = [item for item, was in zip((first, second), given, strict=True) if not (odd and isinstance(was, Weight))]
    fixed = gaussian and any(_is_apart(capture, item, node, layout) for item in given)
    sources: Any = None if gaussian and not odd and not fixed else united(drawn)
    return Field(layout, lambda _: node, sources, is_odd=odd, is_drawn=fixed, call=call, inputs=(first, second))


LEFT_OUT = "channels that fixed numbers leave out, sampled"
FEW = 32
"""Channels up to which fixed numbers that differ between them are kept in a sum: where something is, of which little is
known from how far it is on average."""


def _is_apart(capture: Capture, numbers: Any, made: Node, layout: Layout) -> bool:
    """Whether a sum is fixed numbers in the first place, which differ between few channels (places in an image)."""
    if not isinstance(numbers, Tensor) or layout.channels > FEW:
        return False
    varied = concrete_rows(numbers, layout).var(1, correction=0).mean()
    return float(varied) > 0.5 * float(capture.states.signal(made).covariance.diagonal.mean())


ODD, WIDE = 0.5, 0.5
"""Of a weight: how far its fourth moment is from that of normal entries, and its std, which functions notice."""


def is_odd(law: Distribution) -> bool:
    """Whether a sum with such a weight must be drawn with the weight's own numbers, under any function."""
    if law.variance < WIDE**2:
        return False
    return abs(float(((law.quantiles - law.mean) ** 4).mean()) / law.variance**2 - 3.0) > ODD


def _as_fields(capture: Capture, first: Any, second: Any) -> tuple[Field, Field]:
    """Both as fields; a weight or a real tensor takes the roles of the dimensions it is aligned with."""
    model = first if isinstance(first, Field) else second
    left, right = (
        item if isinstance(item, Field) else as_field(capture, item, layout_like(model.layout, tuple(item.shape)))
        for item in (first, second)
    )
    return left, right


def gained(capture: Capture, call: Call, field: Field, weight: Weight) -> Any:
    """A field times a weight, which is one number for each of its entries."""
    if _has_keys(field):
        return replayed(capture, call)
    own = layout_like(field.layout, weight.shape)
    try:
        layout, (own_field, _) = common_layout([field.layout, own])
    except Misaligned:
        return replayed(capture, call)
    law = weight.distribution
    node = aligned(capture, field, layout, own_field)
    op = Gain(
        law.second_moment, law.mean, weight_sharing(weight, layout), weight.shape, layout.channels, law.unevenness
    )
    made = capture.apply(op, node, weights=bound_to(weight=weight))
    return Field(layout, lambda _: made, sources=field.sources, call=call, inputs=(field, weight))


def fixed_factor(capture: Capture, call: Call, field: Field, numbers: Tensor) -> Any:
    """A field times real numbers."""
    if _has_keys(field):
        return replayed(capture, call)
    own = layout_like(field.layout, tuple(numbers.shape))
    try:
        layout, (own_field, _) = common_layout([field.layout, own])
    except Misaligned:
        return replayed(capture, call)
    gaps = _leave_out(numbers, own)
    if gaps and field.has_gaps:
        return replayed(capture, call, LEFT_OUT)

    def make(_: Field) -> Node:
        kernel, mean = concrete_kernel(numbers, layout)
        return capture.apply(Modulate(kernel, mean), aligned(capture, field, layout, own_field))

    return Field(layout, make, sources=field.sources, leaves_out=gaps, call=call, inputs=(field,))


def _leave_out(numbers: Tensor, layout: Layout) -> bool:
    """Whether numbers of a position are zero for some of its channels only."""
    if numbers.is_meta or hasattr(numbers, NOISE) or not bool((numbers == 0.0).any()):
        return False
    zero = concrete_rows(numbers, layout) == 0.0
    return bool((zero.any(1) & ~zero.all(1)).any())


def _has_keys(item: Any) -> bool:
    return isinstance(item, Field) and item.layout.has_keys
