"""What has no rule: the call is kept to be replayed, and the state of its result sampled when someone asks for it.

Of functions of parameters alone (views, gates, standardization) the distribution is derived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture, by_rule
from sigprop.capture.functions import MOVES, SAME, UNARY
from sigprop.capture.layout import (
    CHANNEL,
    Layout,
    Misaligned,
    arranged,
    common_layout,
    fresh,
    layout_like,
    of_roles,
    resized,
)
from sigprop.capture.record import Call, Field, Weight, made_on_meta, mapped, no_rule, on_meta, result_shape
from sigprop.capture.replay import Replay
from sigprop.distributions import INDEPENDENT, STRUCTURED, UNKNOWN, Distribution, kind_of_derived
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Parent, Parents


def replayed(capture: Capture, call: Call, reason: str = "") -> Any:
    """Records for the results of a call, each with the layout of the operand it looks like."""
    records = call.records
    fields = [item for item in records if isinstance(item, Field)]
    if not fields:
        return of_weights(capture, call)
    said = reason or _sampled(call)
    return _each(made_on_meta(call), lambda item, number: _like(capture, call, item, fields, number, said))


def _each(result: Any, make: Callable[[Tensor, int | None], Any]) -> Any:
    """What stands for the tensor that a call makes, or for each of several."""
    if isinstance(result, Tensor):
        return make(result, None)
    if not isinstance(result, (tuple, list, Iterator)):
        return result
    made = [make(item, number) if isinstance(item, Tensor) else item for number, item in enumerate(result)]
    return made if type(result) is list else tuple(made)


def recorded(capture: Capture, call: Call) -> Any:
    """Records for the results of a call that is only replayed: a loss, and what it is made of.

    Nobody asks for their states, so their dimensions have no roles. Results that a shape cannot be told of without
    values (entries picked by a mask) have that of one draw.
    """
    try:
        result = on_meta(call)
    except Exception:
        args, kwargs = mapped((call.args, call.kwargs), capture.value_of)
        result = call.function(*args, **kwargs)
    return _each(result, lambda item, number: _bare(capture, call, item, number))


def _bare(capture: Capture, call: Call, result: Tensor, output: int | None) -> Field:
    layout = of_roles(tuple(result.shape), [CHANNEL] * result.dim())
    made = capture.drawn_field(layout, call, call.records, _sampled(call), output=output)
    made.dtype = result.dtype
    return made


def kept(capture: Capture, call: Call) -> Any:
    """Records for the results of a call that chooses, or of one on what was chosen, to be replayed only."""
    fields = [item for item in call.records if isinstance(item, Field)]
    result = made_on_meta(call)
    if call.name in MOVES - SAME and call.records == list(call.args[:1]):
        views = by_rule(capture, call)
        return _each(result, lambda item, number: _typed(views if number is None else views[number], item))
    return _each(result, lambda item, number: _kept(capture, call, item, fields, number))


def _kept(capture: Capture, call: Call, result: Tensor, fields: list[Field], output: int | None) -> Field:
    shape = tuple(result.shape)
    layout = _with_channels(shape, fields) or _layout(call, shape, fields)
    return _typed(capture.drawn_field(layout, call, call.records, _sampled(call), output=output), result)


def _typed(made: Field, result: Tensor) -> Field:
    made.dtype = result.dtype
    return made


def _sampled(call: Call) -> str:
    return f"{call.name} sampled on the predicted state"


def _like(capture: Capture, call: Call, result: Tensor, fields: list[Field], output: int | None, reason: str) -> Any:
    layout = _layout(call, tuple(result.shape), fields)
    made = capture.drawn_field(layout, call, call.records, reason, output=output)
    if not (result.is_floating_point() or result.is_complex()):
        return capture.concrete(made).detach()
    made.dtype = result.dtype if result.is_complex() else made.dtype
    return made


def _layout(call: Call, shape: tuple[int, ...], fields: list[Field]) -> Layout:
    same = [item.layout for item in fields if item.shape == shape]
    if same:
        return max(same, key=lambda layout: (layout.has_keys, _ends_in_channels(layout), layout.positions))
    try:
        layout, _ = common_layout([item.layout for item in fields])
    except Misaligned:
        layout = None
    if layout is not None and layout.shape == shape:
        return layout
    found = _extended(shape, fields) or _by_place(shape, fields)
    if found is None:
        given = ", ".join(str(item.shape) for item in fields)
        raise no_rule(call, f"it makes {shape} of {given}, and it is not known which of its dimensions are tokens")
    return found


def _ends_in_channels(layout: Layout) -> bool:
    """Where two tensors of one shape see its dimensions otherwise, modules that map and norm the last one are right."""
    last = layout.dims[-1] if layout.dims else ()
    return not last or not all(axis.is_position for axis in last)


def _extended(shape: tuple[int, ...], fields: list[Field]) -> Layout | None:
    """Broadcast against real tensors: dimensions that no field has take the role of their place."""
    model = max((item.layout for item in fields), key=lambda layout: layout.positions)
    rank = len(shape)
    padded = Layout(((),) * (rank - len(model.dims)) + model.dims, model.order)
    known = all(not dim or size == n for dim, size, n in zip(padded.dims, padded.shape, shape, strict=False))
    if len(padded.dims) != rank or not known:
        return None
    return layout_like(padded, shape)


def _by_place(shape: tuple[int, ...], fields: list[Field]) -> Layout | None:
    """A dimension that has another size has the role of the one in its place; of a field with more dimensions those
    that are left, in order."""
    model = max((item.layout for item in fields), key=lambda layout: (len(layout.dims), layout.positions))
    if model.has_keys or len(shape) > len(model.dims):
        return None
    places = list(range(len(shape))) if len(shape) == len(model.dims) else _left(shape, model.shape)
    if places is None:
        return None
    dims = []
    for n, place in zip(shape, places, strict=True):
        old = model.dims[place]
        kept = math.prod(axis.size for axis in old) == n
        dims.append(old if kept else resized(old, n))
    return arranged(dims, model.order)


def _with_channels(shape: tuple[int, ...], fields: list[Field]) -> Layout | None:
    """A dimension behind all of a field's: the classes of `one_hot`."""
    like = next((item.layout for item in fields if item.shape == shape[:-1]), None)
    return None if like is None else arranged((*like.dims, fresh(shape[-1], CHANNEL)), like.order)


def _left(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[int] | None:
    """Where dimensions stand among more of them, the first that fit."""
    found, start = [], 0
    for n in shape:
        place = next((place for place in range(start, len(whole)) if whole[place] == n), None)
        if place is None:
            return None
        found.append(place)
        start = place + 1
    return found


# -- Functions of parameters alone

ROWS = 8
"""Rows that tell how much their lengths vary."""
ENTRIES, LARGE, MOST = 1024, 1 << 20, 64
"""Numbers that tell how much of a gradient arrives at a parameter, of so few draws and entries drawn at most."""

MAKE_FIELDS = frozenset(
    (
        "embedding",
        "embedding_bag",
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "scaled_dot_product_attention",
        "one_hot",
        "layer_norm",
        "rms_norm",
        "item",
        "tolist",
        "bool",
    )
)
"""Functions of weights and real numbers that are functions of the input."""
ENTRYWISE = frozenset("add radd sub subtract mul multiply rmul".split())  # noqa: SIM905
"""Functions entry by entry, of the input where they make more numbers than the weight has."""
OF_THE_INPUT = frozenset(["batch_norm", "group_norm"])
"""Norms, which have rules of their own for the raw input and standardize a weight."""


def makes_fields(call: Call) -> bool:
    """Whether a call on weights and real numbers is a function of the input; a product of a weight with itself is a
    function of the weight."""
    weights = [item for item in call.records if isinstance(item, Weight)]
    roots = [{name for name, _ in item.roots} for item in weights]
    if any(item.dtype.is_complex for item in weights) or any(
        one & other for number, other in enumerate(roots) for one in roots[:number]
    ):
        return False
    if call.name in OF_THE_INPUT:
        return not isinstance(call.args[0], Weight)
    return call.name in MAKE_FIELDS or (call.name in ENTRYWISE and _is_wider(call))


def _is_wider(call: Call) -> bool:
    """Whether real numbers make more of a weight than it has entries, as an input does that it scales or shifts."""
    given = [item for item in call.given if isinstance(item, Tensor) and item.is_floating_point()]
    most = max(math.prod(item.shape) for item in call.records)
    return any(item.numel() > 1 for item in given) and math.prod(result_shape(call)) > most


def of_weights(capture: Capture, call: Call) -> Any:
    """Weights for the results of a call on weights and real tensors."""
    parents = [item for item in call.records if isinstance(item, Weight)]
    return _each(made_on_meta(call), lambda item, number: _weight(capture, call, item, parents, number))


def _weight(capture: Capture, call: Call, result: Tensor, parents: list[Weight], output: int | None) -> Any:
    shape = tuple(result.shape)
    if result.is_complex():
        return _complex(call, result, parents, output)
    if not result.is_floating_point():
        return capture.concrete(
            Weight(shape, parents[0].distribution, "", (Parent(parents[0], 1.0, 1.0),), call, output)
        )
    made = Weight(shape, parents[0].distribution, "", (), call, output)
    made.derive = _Derived(made, parents[:1] if call.name in MOVES else parents, capture.seed)
    made.distribution, made.parents = made.derive(capture.states)
    return made


def _complex(call: Call, result: Tensor, parents: list[Weight], output: int | None) -> Weight:
    """A complex function of weights, to be replayed only: nobody asks for its distribution but whether it is random, as
    where anything that it is made of is."""
    law = next((item.distribution for item in parents if item.distribution.numbers is None), parents[0].distribution)
    shares = tuple(Parent(item, 1.0 / len(parents), 1.0) for item in parents)
    made = Weight(tuple(result.shape), law, "", shares, call, output)
    made.dtype = result.dtype
    return made


class _Derived:
    """The law of a function of weights, and how much of the energy of its gradient each of these gets."""

    def __init__(self, weight: Weight, parents: list[Weight], seed: Callable[[], int]):
        self._weight, self._parents = weight, parents  # a reshape like another takes its shape
        self._new_seed, self._seed = seed, 0

    def __call__(self, states: Evaluation) -> tuple[Distribution, Parents]:
        weight, parents = self._weight, self._parents
        call = weight.call
        assert call is not None
        laws = [states.law(parent) for parent in parents]
        law, slope = _law(call, parents, laws, weight.shape, weight.output)
        slope = 0.0 if call.name == "detach" else slope
        energy = sum(math.prod(parent.shape) for parent in parents)
        sizes = [slope * math.prod(parent.shape) / energy for parent in parents]
        shares = tuple(Parent(parent, size, size) for parent, size in zip(parents, sizes, strict=True))
        return (law, shares) if law is not None else self._drawn(states, laws, shares)

    def _drawn(self, states: Evaluation, laws: list[Distribution], shares: Parents) -> tuple[Distribution, Parents]:
        self._seed = self._seed or self._new_seed()
        replay = Replay(states, torch.Generator().manual_seed(self._seed), gradients=True)
        values = replay(self._weight)
        if all(law.numbers is not None for law in laws):
            return Distribution.table(values), _received(replay, values) or shares
        assert self._weight.call is not None
        kind = _kind(self._weight.call, laws, values.detach())
        law = replace(Distribution.measured(values, kind), row_tails=_row_tails(values.detach()))
        return law, _received(replay, values) or shares


def _row_tails(values: Tensor) -> float | None:
    """The kurtosis of independent entries with which squared norms of rows would vary as they do: -2 of one length."""
    if values.dim() < 2 or len(values) < ROWS:
        return None
    norms = values.flatten(1).square().sum(1)
    return float(norms.var(correction=0) / norms.mean().square()) * values[0].numel() - 2.0


def _kind(call: Call, laws: list[Distribution], values: Tensor) -> str:
    """What the entries of a function of weights share."""
    kinds = {law.kind for law in laws} - {INDEPENDENT}
    given = [item for item in call.given if isinstance(item, Tensor) and item.numel() > 1]
    if any(item.is_floating_point() for item in given) and not _is_elementwise(call):
        return UNKNOWN  # numbers of the model, as those of spectral_norm: they may have been made from the weights
    return kinds.pop() if len(kinds) == 1 else STRUCTURED if kinds else kind_of_derived(values)


def _received(replay: Replay, values: Tensor) -> Parents:
    """For each drawn weight how much arrives there of a gradient; nothing where autograd cannot say."""
    drawn = list(replay.weights.values())
    fewest = min((item.numel() for item in drawn), default=ENTRIES)
    count = max(1, min(ENTRIES // max(fewest, 1), LARGE // max(values.numel(), 1), MOST))
    given = {"generator": replay.generator, "dtype": values.dtype}
    anywhere = (torch.randn(values.shape, **given) for _ in range(count))
    rows = (torch.randn((*values.shape[:1], *[1] * (values.dim() - 1)), **given) for _ in range(count))
    try:
        found = [_energies(values, drawn, above) for above in (anywhere, (values.detach() * row for row in rows))]
    except RuntimeError:
        return ()
    return tuple(Parent(*item) for item in zip(replay.weights, *found, strict=True))


def _energies(values: Tensor, drawn: list[Tensor], gradients: Iterable[Tensor]) -> list[float]:
    """How much of the energy of gradients arrives at each of what the values were made of."""
    total, sums = 0.0, [0.0] * len(drawn)
    for above in gradients:
        below = torch.autograd.grad(values, drawn, above, allow_unused=True, retain_graph=True)
        total += float(above.square().sum())
        sums = [
            size + (0.0 if item is None else float(item.square().sum())) for size, item in zip(sums, below, strict=True)
        ]
    return [size / max(total, 1e-300) for size in sums]


def _law(
    call: Call, parents: list[Weight], laws: list[Distribution], shape: tuple[int, ...], output: int | None
) -> tuple[Distribution | None, float]:
    """The distribution of the result's entries, and how much gradient energy passes to the parent."""
    only, law = parents[0], laws[0]
    if call.name in MOVES:
        return _moved(call, only, law, output), 1.0
    others = [item for item in (*call.args, *call.kwargs.values()) if isinstance(item, Tensor) and item.numel() > 1]
    if len(parents) == 1 and not others and shape == only.shape and _is_elementwise(call):
        table = law.numbers
        x = (law.quantiles if table is None else table.double()).clone().requires_grad_()
        try:
            with torch.enable_grad():
                args = tuple(x if item is only else item for item in call.args)
                value = _out_of_place(call)(*args, **call.kwargs)
                (slope,) = torch.autograd.grad(value.sum(), x)
        except (RuntimeError, TypeError, IndexError):
            return None, 1.0
        if value.shape == x.shape:
            made = Distribution.of(value.detach(), law.kind) if table is None else Distribution.table(value)
            return made, float(slope.square().mean())
    return None, 1.0


def _moved(call: Call, parent: Weight, law: Distribution, output: int | None) -> Distribution:
    """The law of moved entries; parts of a table are tables of their own."""
    if law.numbers is None or any(isinstance(item, Weight) and item is not parent for item in call.records):
        return law
    moves = replace(call, function=torch.Tensor.reshape) if call.name == "view" else call
    made = moves.on(law.numbers, parent)
    return Distribution.table(made if output is None else list(made)[output])


def _is_elementwise(call: Call) -> bool:
    return call.name in UNARY or call.name.removeprefix("r") in ("add", "sub", "mul", "div", "truediv", "pow")


def _out_of_place(call: Call) -> Any:
    return getattr(torch, call.name, call.function) if call.in_place else call.function
