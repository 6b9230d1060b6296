"""What tensors of a trace are linear in, and the numbers on the way: ends of branches, scores of attention, tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sigprop.capture.functions import MOVES
from sigprop.capture.record import Field, Weight, leaves
from sigprop.capture.roles import CONTRACTIONS
from sigprop.structure.attention import FUSED, attention_at, given_to
from sigprop.structure.residual import CARRIED, SCALINGS, SUMS, core, factor

if TYPE_CHECKING:
    from sigprop.structure.residual import Tensors

STEPS, SCALED_STEPS = 40, 4
MASKED = 1e4
WITH_FACTORS = 4
"""Arguments of `beta * input + alpha * product`, as `baddbmm` is recorded."""
GATHERED = ("index_add", "scatter_add")


@dataclass(frozen=True)
class Ending:
    """Names of the last parameters, weights first. `shift`: they enter as `shift + w` (gains of Gemma's norms)."""

    names: tuple[str, ...] = ()
    shift: float = 0.0


def ending(branch: Field) -> Ending:
    """The last parameters of a branch; without names where it is not linear in any."""
    weights, fields, name = [item for item in branch.weights if item.shape != ()], branch.fields, branch.made_by
    if weights:
        shifts = {shift_of(item) for item in weights}
        shift = shifts.pop()
        return Ending() if shifts or shift is None else Ending(_names(weights), shift)
    if name in SUMS and len(fields) == 2:
        biased = _with_bias(fields)
        shared = biased if biased.names else _shared(fields)
        return shared if shared.names else _union([ending(item) for item in fields])
    if name == "cat" and len(fields) > 1:
        return _shared(fields)
    if name in GATHERED:
        return _union([ending(item) for item in fields])
    if name in ("mul", "expert_sum") and len(fields) == 2:
        fields = [item for item in fields if item.shape[-1:] == branch.shape[-1:] != (1,)]
    return ending(fields[0]) if name in CARRIED and len(fields) == 1 else Ending()


def _with_bias(fields: list[Field]) -> Ending:
    """A sum with a field that is made of parameters alone."""
    added = [item for item in fields if item.inputs and all(isinstance(inner, Weight) for inner in item.inputs)]
    if len(added) != 1:
        return Ending()
    before = ending(next(item for item in fields if item is not added[0]))
    biases = _names(added[0].weights)
    return Ending(before.names + biases) if before.names and before.shift == 0.0 else Ending()


def _shared(fields: list[Field]) -> Ending:
    """What parts of one tensor, put together or added (rotary positions), all end in."""
    found = {ending(item) for item in fields}
    return found.pop() if len(found) == 1 else Ending()


def _union(found: list[Ending]) -> Ending:
    """Of a sum of parts that each end in weights: all of them; nothing where a part does not."""
    if not all(item.names and item.shift == 0.0 for item in found):
        return Ending()
    return Ending(tuple(dict.fromkeys(name for item in found for name in item.names)))


def _names(weights: list[Weight]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in weights for name, _ in item.roots))


def shift_of(weight: Weight) -> float | None:
    """0 for a parameter or a view of one, `c` for `c + w`, None for any other function of parameters."""
    if weight.call is None:
        return 0.0
    parents = [shift_of(parent) for parent, *_ in weight.parents]
    if weight.call.name in MOVES and None not in parents and len(set(parents)) == 1:
        return parents[0]
    numbers = [item for item in leaves(weight.call.args) if isinstance(item, (int, float))]
    if weight.call.name in SUMS and parents == [0.0] and len(numbers) == 1 and not weight.call.kwargs:
        return float(numbers[0])
    return None


@dataclass(frozen=True)
class Scores:
    """One attention: the module that computes it, the size of a head, and `scale`, the number that multiplies `q . k`.

    `query`, `key`, `value`: parameters that each is linear in, entering as `shift + w` for queries (none where
    something else follows them, or where keys and values have a shift); a fused projection stands in several. `mixer`:
    the weights of the first linear map of what attention puts out. `scale` is None where it was not found. `biased`:
    more than a mask is added to `q . k` (ALiBi, a table).
    """

    module: str
    head_width: int
    scale: float | None
    query: tuple[str, ...] = ()
    shift: float = 0.0
    biased: bool = False
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    mixer: tuple[str, ...] = ()


def find_scores(graph: Tensors) -> tuple[Scores, ...]:
    """Every attention of a trace, in order; a module that attends several times is named once."""
    found: dict[str, Scores] = {}
    for item in graph.index:
        spot = attention_at(item)
        if spot is None or item.call is None or item.call.module in found:
            continue
        biased = False
        if item.call.name == FUSED:
            given = given_to(item)
            query, key, scale = given["query"], given["key"], given.get("scale")
            scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        else:
            product, scale, biased = _product(spot.scores[0])
            if product is None:
                found[item.call.module] = Scores(item.call.module, spot.value.shape[-1], None)
                continue
            query, key = product
        scale *= _numbers(query) * _numbers(key)
        last, others = ending(query), [ending(field) for field in (key, spot.value)]
        keys, values = (each.names if each.shift == 0.0 else () for each in others)
        found[item.call.module] = Scores(
            item.call.module, query.shape[-1], scale, last.names, last.shift, biased, keys, values, _mixer(graph, item)
        )
    return tuple(found.values())


def _mixer(graph: Tensors, item: Field) -> tuple[str, ...]:
    """The weights of the first linear map that reads what attention puts out; none where it is read otherwise."""
    for _ in range(STEPS):
        readers = graph.readers.get(item, [])
        if len(readers) != 1:
            return ()
        item = readers[0]
        if item.made_by in CONTRACTIONS:
            return _names(item.weights[:1])
        if item.made_by not in CARRIED or item.weights:
            return ()
    return ()


def find_routers(graph: Tensors) -> frozenset[str]:
    """Modules whose softmax is over what a matrix makes of each token, such as the experts it may go to."""
    softmaxes = [item for item in graph.index if item.made_by == "softmax"]
    return frozenset(item.call.module for item in softmaxes if item.call is not None and _is_of_a_matrix(item))


def _is_of_a_matrix(item: Field) -> bool:
    """Whether the product nearest before a softmax is one with a weight."""
    for _ in range(STEPS):
        fields = item.fields
        if item.made_by in CONTRACTIONS:
            return len(fields) == 1
        if not fields:
            return False
        item = fields[0]
    return False


def _product(weights: Field) -> tuple[tuple[Field, Field] | None, float, bool]:
    """Query and key behind attention weights, the numbers between their product and the softmax, and whether more than
    a mask is added on the way."""
    item, scale, biased = weights, 1.0, False
    for _ in range(STEPS):
        scale, item = scale * factor(item), core(item)
        fields = item.fields
        if item.made_by in CONTRACTIONS and len(fields) == 2:
            return (fields[0], fields[1]), scale, biased
        if not fields:
            return None, scale, biased
        if item.call is not None and item.call.name in SUMS:
            biased = biased or len(fields) > 1 or any(map(_is_bias, item.call.args))
            scale *= float(item.call.args[-1]) if len(item.call.args) == WITH_FACTORS else 1.0
        item = next((inner for inner in fields if len(inner.shape) == len(item.shape)), fields[0])
    return None, scale, biased


def _is_bias(value: Any) -> bool:
    """A tensor that does more than let through or stop."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return isinstance(value, Weight)
    return bool(((value != 0) & (value.abs() < MASKED)).any())


def _numbers(item: Field) -> float:
    """The numbers that multiply a query or key since its projection."""
    scale = 1.0
    for _ in range(STEPS):
        if item.made_by in SCALINGS and item.slope is not None:
            scale, item = scale * factor(item), core(item)
        fields = item.fields
        if not fields or any(isinstance(inner, Weight) for inner in item.inputs):
            break
        if item.made_by in SUMS and len(fields) > 2:
            break
        item = fields[0]
    return scale


@dataclass(frozen=True)
class TableScale:
    """The number, and whether the module that owns the table multiplies it in."""

    number: float = 1.0
    inside: bool = False


def table_scales(graph: Tensors) -> dict[str, TableScale]:
    """By embedding, the number that multiplies what is looked up before anything else reads it (Gemma: the root of the
    width), where it is not one."""
    found: dict[str, TableScale] = {}
    for item in graph.index:
        scale = _scale(graph, item) if item.made_by == "embedding" else TableScale()
        found |= dict.fromkeys(_names(item.weights), scale) if scale.number != 1.0 else {}
    return found


def _scale(graph: Tensors, item: Field) -> TableScale:
    scale, owner, inside = 1.0, item.call.module if item.call is not None else "", False
    for _ in range(SCALED_STEPS):
        readers = graph.readers.get(item, [])
        call = readers[0].call if len(readers) == 1 else None
        if call is None or call.name not in SCALINGS:
            break
        numbers = [number for value in call.args if (number := _number(value)) is not None]
        if len(numbers) != 1:
            break
        scale *= numbers[0] if "mul" in call.name else 1.0 / numbers[0]
        inside = call.module == owner
        item = readers[0]
    return TableScale(scale, inside)


def _number(value: Any) -> float | None:
    """A Python number or a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        return float(value)
    return float(value) if isinstance(value, (int, float)) else None
