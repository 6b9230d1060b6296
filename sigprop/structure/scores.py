"""Attention scores as a model writes them: what multiplies `q . k`, and the parameters that queries are linear in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sigprop.capture.record import Field, Weight
from sigprop.capture.roles import CONTRACTIONS
from sigprop.structure.attention import FUSED, attention_at
from sigprop.structure.branch_outputs import ending
from sigprop.structure.residual import CARRIED, SCALINGS, SUMS, core, factor

if TYPE_CHECKING:
    from sigprop.structure.residual import Tensors

STEPS = 40
MASKED = 1e4
WITH_FACTORS = 4
"""Arguments of `beta * input + alpha * product`, as `baddbmm` is recorded."""
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


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
            given = dict(zip(ARGUMENTS, item.call.args, strict=False)) | item.call.kwargs
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
        if len(readers) != 1 or readers[0].call is None:
            return ()
        item = readers[0]
        weights = [source for source in item.inputs if isinstance(source, Weight)]
        if item.call is not None and item.call.name in CONTRACTIONS:
            return tuple(dict.fromkeys(name for name, _ in weights[0].roots)) if weights else ()
        if item.call is None or item.call.name not in CARRIED or weights:
            return ()
    return ()


def find_routers(graph: Tensors) -> frozenset[str]:
    """Modules whose softmax is over what a matrix makes of each token, such as the experts it may go to."""
    softmaxes = [item for item in graph.index if item.call is not None and item.call.name == "softmax"]
    return frozenset(item.call.module for item in softmaxes if item.call is not None and _is_of_a_matrix(item))


def _is_of_a_matrix(item: Field) -> bool:
    """Whether the product nearest before a softmax is one with a weight."""
    for _ in range(STEPS):
        fields = [inner for inner in item.inputs if isinstance(inner, Field)]
        if item.call is not None and item.call.name in CONTRACTIONS:
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
        fields = [inner for inner in item.inputs if isinstance(inner, Field)]
        if item.call is not None and item.call.name in CONTRACTIONS and len(fields) == 2:
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
        if item.call is not None and item.call.name in SCALINGS and item.slope is not None:
            scale, item = scale * factor(item), core(item)
        fields = [inner for inner in item.inputs if isinstance(inner, Field)]
        if not fields or any(isinstance(inner, Weight) for inner in item.inputs):
            break
        if item.call is not None and item.call.name in SUMS and len(fields) > 2:
            break
        item = fields[0]
    return scale
