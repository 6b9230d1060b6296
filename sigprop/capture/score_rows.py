"""Attention scores, predicted: their mean and variance, the entropy of the weights and the largest weight.

Scores are drawn from the predicted states of what they are made of, at the true head width, through whatever the model
does to them (scaling, rotary positions, norms of queries and keys, masks, biases), and summarized as `measure` does:
over all allowed scores, and over queries for what the softmax makes of them.
"""

from __future__ import annotations

from typing import Any

import torch

from sigprop.capture.ensemble import APART
from sigprop.capture.record import Field
from sigprop.capture.replay import Replay
from sigprop.capture.replayed_heads import heads_in
from sigprop.capture.rules.attention import attention_scores
from sigprop.capture.tracing import TracedModel
from sigprop.errors import SigpropError
from sigprop.graph.evaluate import Evaluation
from sigprop.results import SiteRow
from sigprop.score_masks import score_summary
from sigprop.sites import SCORES, CallCounter, DepthCounter, inside

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
        for name, value in score_summary(scores).items():
            total[name] = total.get(name, 0.0) + float(value)
        draws += 1
        if (draws + 1) * scores.numel() > ENTRIES:
            break
    return {name: value / draws for name, value in total.items()}


def _value(mask: Any, replay: Replay) -> Any:
    return replay(mask) if isinstance(mask, Field) else mask
