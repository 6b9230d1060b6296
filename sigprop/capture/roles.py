"""The role of every parameter, from how the trace uses it.

Attention scores, predicted: their mean and variance, the entropy of the weights and the largest weight.

Scores are drawn from the predicted states of what they are made of, at the true head width, through whatever the model
does to them (scaling, rotary positions, norms of queries and keys, masks, biases), and summarized as `measure` does:
over all allowed scores, and over queries for what the softmax makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.ensemble import APART
from sigprop.capture.fields.attention import attention_scores
from sigprop.capture.record import Field, Record, Weight, leaves
from sigprop.capture.replay import Replay
from sigprop.capture.replayed_heads import heads_in
from sigprop.capture.tracing import TracedModel
from sigprop.errors import SigpropError
from sigprop.graph.evaluate import Evaluation
from sigprop.results import SiteRow
from sigprop.score_masks import allowed_scores
from sigprop.sites import SCORES, CallCounter, DepthCounter, inside

CONTRACTIONS = frozenset(
    ["linear", "addmm", "matmul", "mm", "bmm", "mv", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d"]
)
FIRST = ("embedding", "positional", "input", "readout", "router", "hidden", "norm gain", "gain", "bias")
"""Of several uses, the one that a parameter is called by: the first of these."""


@dataclass(frozen=True)
class ParameterUse:
    """How a parameter is used. `fan_in` and `fan_out` are those of its matrix (1 and its size for vectors).

    `tied`: it is also used in a second role (`uses` has all of them). `expert`: only the tokens sent to it see it.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    fan_in: int
    fan_out: int
    uses: tuple[str, ...] = ()
    expert: bool = False

    @property
    def tied(self) -> bool:
        return len(set(self.uses)) > 1


def find_roles(traced: TracedModel, fields: list[Field]) -> dict[str, ParameterUse]:
    """One entry for every parameter; one that the forward pass never uses is `unused`."""
    weights = traced.weights
    uses: dict[str, list[str]] = {name: [] for name in weights}
    fans: dict[str, tuple[int, int]] = {}
    experts: set[str] = set()
    last, routers = readouts(traced), _routers(fields)
    for item in everything(fields):
        for weight, place in _weights_of(item):
            role = _role(item, weight, place)
            for name, _ in weight.roots:
                if role == "hidden":
                    role = "router" if name in routers else "readout" if name in last else role
                if role == "hidden" and _is_expert(name, weight, weights[name]):
                    experts.add(name)
                uses[name].append(role)
                if role in ("hidden", "readout", "router", "input"):
                    fans[name] = _fans(item, weight)
    found = {}
    for name, weight in weights.items():
        roles = list(dict.fromkeys(uses[name]))
        role = next((r for r in FIRST if r in roles), "unused")
        fan_in, fan_out = fans.get(name, (1, math.prod(weight.shape)))
        found[name] = ParameterUse(name, weight.shape, role, fan_in, fan_out, tuple(roles), name in experts)
    return found


def everything(fields: Iterable[Field]) -> list[Field]:
    """Fields of the trace and those that rules made on the way."""
    seen: dict[int, Field] = {}
    stack: list[Record] = list(fields)
    while stack:
        item = stack.pop()
        if isinstance(item, Field) and id(item) not in seen:
            seen[id(item)] = item
            stack.extend(item.inputs)
    return list(seen.values())


def _weights_of(item: Field) -> list[tuple[Weight, int]]:
    return [(source, place) for place, source in enumerate(item.inputs) if isinstance(source, Weight)]


def _role(item: Field, weight: Weight, place: int) -> str:
    name = item.call.name if item.call is not None else ""
    if name == "embedding":
        return "positional" if _counts_up(item) else "embedding"
    if name in ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"):
        return "norm gain" if place == 1 else "bias"
    if name in CONTRACTIONS:
        if place > 1 or len(weight.shape) == 1:
            return "bias"
        first = item.inputs[0]
        return "input" if isinstance(first, Field) and not first.inputs else "hidden"
    if name in ("mul", "rmul", "multiply"):
        above = item.inputs[0]
        normed = isinstance(above, Field) and above.call is not None and _is_normalized(above)
        return "norm gain" if normed else "gain"
    if len(item.inputs) == 1 and len(item.layout.order) > 0 and len(weight.shape) > 1:
        return "positional"
    return "bias"


def _is_normalized(item: Field) -> bool:
    if item.call is None:
        return False
    records = [source for source in item.call.records if isinstance(source, Field)]
    return any(source.statistic is not None for source in records)


def _counts_up(item: Field) -> bool:
    """Ids that run 0, 1, 2, ... (from any start): positions."""
    assert item.call is not None
    ids = next((leaf for leaf in leaves(item.call.args) if isinstance(leaf, Tensor)), None)
    if ids is None or ids.numel() < 2:
        return False
    row = ids.reshape(-1, ids.shape[-1])[0]
    return bool((row.diff() == 1).all()) if row.numel() > 1 else False


def _fans(item: Field, weight: Weight) -> tuple[int, int]:
    shape: tuple[int, ...] = tuple(weight.shape)
    name = item.call.name if item.call is not None else ""
    if name.startswith("conv"):
        return math.prod(shape[1:]), shape[0] * math.prod(shape[2:])
    if name == "linear":
        return shape[-1], shape[-2] if len(shape) > 1 else 1
    return (shape[-2], shape[-1]) if len(shape) > 1 else (math.prod(shape), math.prod(shape))


def _is_expert(name: str, weight: Weight, root: Weight) -> bool:
    stacked = len(root.shape) > 2 and weight.call is not None and weight.call.name in ("getitem", "select", "unbind")
    return stacked or "experts." in name or (".expert" in name and "shared" not in name)


def nearest_matrices(item: Record, through_products: bool = True) -> list[str]:
    """Weights of the nearest contractions above a record; `through_products`: also above products of two signals."""
    found: dict[str, None] = {}
    stack, seen = [item], set()
    while stack:
        record = stack.pop()
        if id(record) in seen or not isinstance(record, Field):
            continue
        seen.add(id(record))
        weights = [source for source in record.inputs if isinstance(source, Weight)]
        contracts = record.call is not None and record.call.name in CONTRACTIONS
        if contracts and weights:
            found.update((name, None) for name, _ in weights[0].roots)
        elif through_products or not contracts:
            stack.extend(source for source in record.inputs if not _weighs(source, record))
    return list(found)


def _weighs(source: Record, record: Field) -> bool:
    """One number per token, such as a router's weight of an expert; the shares of all experts."""
    if record.call is not None and record.call.name == "expert_sum":
        return source is not record.inputs[0]
    return len(source.shape) == len(record.shape) and source.shape[-1:] == (1,) != record.shape[-1:]


def readouts(traced: TracedModel) -> set[str]:
    """Matrices that make what is predicted: the first output, else what the model's own loss judges. Where that is a
    product of two signals, the similarities of two towers, there is none."""
    return {name for item in traced.predictions for name in nearest_matrices(item, through_products=False)}


def _routers(fields: list[Field]) -> set[str]:
    found: set[str] = set()
    for item in fields:
        if item.call is not None and item.call.name == "topk":
            found.update(nearest_matrices(item))
    return found


# -- Attention scores, predicted: their mean and variance, the entropy of the weights and the largest weight


MOST, FEWEST, EXACT = 512, 32, 8
"""Heads that are drawn for one attention: at most, and at least. Up to `EXACT` attentions have the most; beyond, the
number falls with the square of how many there are, as the rows of many layers vary smoothly.

The variance of one head's scores fluctuates by about sqrt(2 / head width)."""
ENTRIES = 1 << 22
"""Scores that are drawn at most for each attention."""
SOFTMAX = ("softmax", "_softmax")


def score_rows(found: TracedModel, seed: int) -> list[SiteRow]:
    """One row per attention of the trace, named like the sites of `measure(scores=True)`."""
    rows, calls, depth = [], CallCounter(), DepthCounter()
    drawn = heads_in(found.states)
    wanted = min(max(MOST * EXACT**2 // max(len(drawn), 1) ** 2, FEWEST), MOST)
    for heads in drawn:
        source = _before_softmax(heads.weight)
        if source is None or source.call is None:
            continue
        name = calls.next(inside(source.call.module, SCORES))
        try:
            values = _drawn(found.states, source, heads.heads, wanted, seed + len(rows))
        except (RuntimeError, SigpropError):
            continue
        row = SiteRow(name, depth(name), values.pop("mean"), values.pop("variance"), status="sampled", extras=values)
        row.reason = "attention scores drawn from the predicted states"
        rows.append(row)
    return rows


def placed(sites: list[SiteRow], scores: list[SiteRow]) -> list[SiteRow]:
    """Rows of scores before the row of the module that computes them."""
    waiting: dict[str, list[SiteRow]] = {}
    for row in scores:
        waiting.setdefault(row.name.partition(".scores")[0], []).append(row)
    made: list[SiteRow] = []
    for row in sites:
        made += [*waiting.pop(row.name.partition("[")[0], ()), row]
    return [*made, *(row for rows in waiting.values() for row in rows)]


def _before_softmax(weight: Field) -> Field | None:
    """The field whose call makes the weights of scores: fused attention, or a softmax at or above it."""
    item: Any = weight
    while isinstance(item, Field) and item.call is not None:
        if item.call.name in ("attention_weights", *SOFTMAX):
            return item
        fields = [source for source in item.inputs if isinstance(source, Field)]
        if len(fields) != 1:
            return None
        item = fields[0]
    return None


def _drawn(states: Evaluation, source: Field, heads: int, wanted: int, seed: int) -> dict[str, float]:
    call = source.call
    assert call is not None
    total: dict[str, float] = {}
    draws = 0
    while draws * heads < wanted:
        replay = Replay(states, torch.Generator().manual_seed(seed * APART + draws))
        if call.name == "attention_weights":
            query, key, groups, mask, _, causal, scale = call.args
            scores = attention_scores(replay(query), replay(key), groups, _value(mask, replay), causal, scale)
        else:
            scores = replay(call.args[0] if call.args else call.kwargs["input"])
        for name, value in _summary(scores.detach()).items():
            total[name] = total.get(name, 0.0) + value
        draws += 1
        if (draws + 1) * scores.numel() > ENTRIES:
            break
    return {name: value / draws for name, value in total.items()}


def _value(mask: Any, replay: Replay) -> Any:
    return replay(mask) if isinstance(mask, Field) else mask


def _summary(scores: Tensor) -> dict[str, float]:
    """The same columns as in `sigprop.measurement.attention`, which knows nothing of this room."""
    hidden = ~allowed_scores(scores)
    queries = ~hidden.all(-1)
    count, known = hidden.numel() - hidden.sum(), scores.masked_fill(hidden, 0.0)
    mean = float(known.sum(dtype=torch.float64) / count)
    square = float(known.square().sum(dtype=torch.float64) / count)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)[queries]
    return {
        "mean": mean,
        "variance": max(square - mean**2, 0.0),
        "entropy": float(torch.special.entr(weights).sum(-1).mean(dtype=torch.float64)),
        "largest_weight": float(weights.amax(-1).mean(dtype=torch.float64)),
    }
