"""Rows of a profile from the states of a traced model: of sites, of parameters, of attention scores."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from functools import lru_cache, partial, reduce
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.ensemble import APART, LARGEST_SITE, followed
from sigprop.capture.layout import BATCH, Layout
from sigprop.capture.record import Field
from sigprop.capture.replay import Replay
from sigprop.capture.replayed_heads import heads_in
from sigprop.capture.roles import find_roles
from sigprop.capture.rules.attention import attention_scores
from sigprop.capture.tracing import TracedModel
from sigprop.errors import SigpropError
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.graph.graph import Node
from sigprop.results import ParameterRow, SiteRow
from sigprop.results.stated_errors import tell
from sigprop.score_masks import score_summary
from sigprop.sites import SCORES, CallCounter, DepthCounter, depths, inside
from sigprop.theory import EXACT, Evidence, Gradient, Signal, Status
from sigprop.theory.ops.activation import Activation
from sigprop.theory.states import FEW as OWN_AVERAGE

Axes = tuple[tuple[int, bool], ...]
"""For each axis of positions its size and whether it is the batch."""


def token_correlation(signal: Signal, layout: Layout) -> float:
    """Of a traced state, by the profile's definition: pairs of different tokens of one sequence."""
    return summary(signal.kernel.values, signal.mean, axes_of(layout))[2]


def axes_of(layout: Layout) -> Axes:
    return tuple((axis.size, axis.role == BATCH) for axis in layout.order)


def padding_masks(batch: Any) -> list[Tensor]:
    """Masks `(sequences, tokens)` of the batch that leave something out, true for a real token; see `measure`."""
    named = dict(batch) if isinstance(batch, Mapping) else {}
    found = [named.get(key) for key in ("attention_mask", "decoder_attention_mask")]
    return [mask.bool() for mask in found if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all())]


def fitting_mask(masks: list[Tensor], name: str, axes: Axes) -> Tensor | None:
    """The mask of a site's positions: that whose sequences and tokens it has, in this order."""
    sizes = [size for size, _ in axes]
    fitting = [mask for mask in masks if sizes == [n for n in mask.shape if n > 1] and (not axes or not axes[-1][1])]
    return None if not fitting else fitting[-1] if "decoder" in name else fitting[0]


def summary(kernel: Tensor, mean: Tensor, axes: Axes, mask: Tensor | None = None) -> tuple[float, float, float]:
    """Mean, variance and token correlation over the positions of a mask; pairs are taken within each sequence."""
    same = _same_sequence(axes)
    if mask is not None:
        kept = mask.flatten().nonzero()[:, 0]
        kernel, mean, same = kernel[kept][:, kept], mean[kept], same[kept][:, kept]
    overall = mean.mean()
    centred = kernel - overall * (mean[:, None] + mean) + overall**2 if overall else kernel
    level = centred.diagonal().clamp_min(0.0)
    usable = (level > 1e-13 * (kernel.diagonal() + overall**2)).double()
    inverse = usable / level.clamp_min(1e-300).sqrt()
    pairs = usable @ same @ usable
    correlation = float(inverse @ (centred * same) @ inverse / pairs) if pairs > 0 else float("nan")
    return float(overall), float(level.mean()), correlation


@lru_cache(maxsize=4)
def _same_sequence(axes: Axes) -> Tensor:
    """1 for pairs of different positions of one sequence."""
    index = torch.zeros([size for size, _ in axes] or [1], dtype=torch.long)
    for place, (size, is_batch) in enumerate(axes):
        if is_batch:
            shape = [-1 if other == place else 1 for other in range(len(axes))]
            index = index * size + torch.arange(size).reshape(shape)
    sequence = index.flatten()
    return (sequence[:, None] == sequence).double().fill_diagonal_(0.0)


LITTLE = 0.1
"""Share of the squared mean below which a variance is no longer what BatchNorm to first order promises: the mean of a
function behind it is that of a Gaussian, whose square is off by 2 % at 25 independent positions, a fifth of this."""
REMAINDER = "a variance that is little beside the squared mean, which is known to first order"


class SiteRows:
    """Rows of the sites: signals at once, gradients as the backward pass comes by."""

    def __init__(self, found: TracedModel, start: Start):
        states, self._repeats = found.states, found.capture.repeats
        self._states = states
        self.sites: list[SiteRow] = []
        self._waiting: dict[Node, list[tuple[SiteRow, Field, Evidence]]] = {}
        self._kept: dict[Field, Gradient] = {}
        self._told: list[tuple[SiteRow, Evidence, str]] = []
        self._masks = padding_masks(found.batch)
        self._last: tuple[Any, tuple[float, float, float], Any] | None = None
        sites = [(name, item) for name, item in found.sites if not item.layout.has_keys]
        with found.capture.lock:
            nodes = {item: item.node for item in followed([item for _, item in sites])}
        signals = states.signals(nodes.values())
        for (name, item), depth in zip(sites, depths([name for name, _ in sites]), strict=True):
            if item not in nodes:
                why = (
                    f"not followed: {item.layout.positions:,} positions, more than the {LARGEST_SITE:,} of such a site"
                )
                self.sites.append(SiteRow(name, depth, status="assumed", reason=why))
                continue
            signal = signals[item.node]
            mean, variance, correlation = self._summary(name, signal, signal.mean, item.layout)
            if signal.width <= OWN_AVERAGE:
                variance = max(variance - float(signal.of_the_average()), 0.0)
            row = SiteRow(name, depth, mean, variance, correlation)
            evidence = signal.evidence
            if evidence.status is Status.ASYMPTOTIC and variance < LITTLE * mean**2:
                evidence = evidence.join(Evidence(Status.ASSUMED, REMAINDER))
            self._told.append((row, evidence, "variance"))
            self.sites.append(row)
            if item.requires_grad:
                self._waiting.setdefault(item.node, []).append((row, item, evidence))
        drawn = found.capture.drawn
        passed = [function.sites_between for function in (*drawn, *heads_in(states))]
        self._passed: dict[Field, Gradient] = {}
        self._bypassed = {site for sites in passed for site in sites}.union(start.passed)
        self._composed: dict[Node, list[Field]] = {}
        for item in found.capture.composed:
            if item.is_made and isinstance(item.node.op, Activation):
                self._composed.setdefault(item.node, []).append(item)
                self._bypassed.update(item.sites_behind())

    def take_gradient(self, node: Node, gradient: Gradient) -> None:
        for row, item, evidence in self._waiting.get(node, ()):
            self._fill(row, item, evidence, gradient)
            if item in self._bypassed:
                self._kept[item] = gradient
        for item in self._composed.get(node, ()):
            self._pass_functions(item, gradient)

    def _pass_functions(self, item: Field, gradient: Gradient) -> None:
        """To the sites between a function and what it is recorded as a function of."""
        op, x = self._states.op(item.node), self._states.signal(item.node.inputs[0])
        assert isinstance(op, Activation)
        for site in item.sites_behind():
            made, before = op.at_function(gradient, partial(_slope, item, site), x), self._passed.get(site)
            self._passed[site] = made if before is None else before + made

    def finish(self) -> list[SiteRow]:
        """Add the gradients that passed sites without their nodes."""
        for found in self._waiting.values():
            for row, item, evidence in found:
                passed = [made[item] for made in (self._states.passed, self._passed) if item in made]
                if passed:
                    kept = [self._kept[item]] if item in self._kept else []
                    self._fill(row, item, evidence, reduce(operator.add, passed + kept))
        tell(self._told)
        return self.sites

    def _fill(self, row: SiteRow, item: Field, evidence: Evidence, gradient: Gradient) -> None:
        none = torch.zeros_like(gradient.kernel.values[0])
        _, level, row.grad_token_correlation = self._summary(row.name, gradient, none, item.layout)
        row.grad_variance = level / self._repeats.get(item, 1)
        self._told.append((row, evidence.join(gradient.evidence), "grad_variance"))

    def _summary(self, name: str, state: Signal | Gradient, mean: Tensor, layout: Layout) -> tuple[float, float, float]:
        """That of the site before where both have one state, as a module and its last layer do."""
        axes = axes_of(layout)
        mask = fitting_mask(self._masks, name, axes)
        key = (state, axes, mask)
        if self._last is None or any(
            one is not two and one != two for one, two in zip(self._last[0], key, strict=True)
        ):
            self._last = (key, summary(state.kernel.values, mean, axes, mask), state)
        return self._last[1]


def _slope(item: Field, site: Field, x: Tensor) -> Tensor:
    """That of a tensor along a site, both functions of one, at these numbers of it."""
    with torch.enable_grad():
        value = site.apply(x).detach().requires_grad_()
        made = item.of_known({site: value}, x)
        slope = torch.autograd.grad(made.sum(), value)[0] if made.requires_grad else torch.zeros_like(x)
    return slope.detach()


def parameter_rows(found: TracedModel) -> list[ParameterRow]:
    energy, evidence = found.states.energy, found.states.evidence
    roles = find_roles(found, [item for item in found.capture.records if isinstance(item, Field)])
    rows, told = [], []
    for name, weight in found.weights.items():
        row = ParameterRow(name, weight.shape, roles[name].role, weight.distribution.variance**0.5)
        received = name in energy and weight.requires_grad
        told.append((row, evidence.get(name, EXACT), "grad_second_moment" if received else None))
        if received:
            row.grad_second_moment = energy[name] / math.prod(weight.shape)
        rows.append(row)
    tell(told)
    return rows


# -- Attention scores: their mean and variance, the entropy of the weights and the largest weight
#
# Scores are drawn from the predicted states of what they are made of, at the true head width, through whatever the
# model does to them (scaling, rotary positions, norms of queries and keys, masks, biases), and summarized as `measure`
# does: over all allowed scores, and over queries for what the softmax makes of them.


MOST, FEWEST, FEW = 512, 32, 8
"""Heads that are drawn for one attention: at most, and at least. Up to `FEW` attentions have the most; beyond, the
number falls with the square of how many there are, as the rows of many layers vary smoothly.

The variance of one head's scores fluctuates by about sqrt(2 / head width)."""
ENTRIES = 1 << 22
"""Scores that are drawn at most for each attention."""
SOFTMAX = ("softmax", "_softmax")


def score_rows(found: TracedModel, seed: int) -> list[SiteRow]:
    """One row per attention of the trace, named like the sites of `measure(scores=True)`."""
    rows, calls, depth = [], CallCounter(), DepthCounter()
    drawn = heads_in(found.states)
    wanted = min(max(MOST * FEW**2 // max(len(drawn), 1) ** 2, FEWEST), MOST)
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
        row.reason = "attention scores sampled from the predicted states"
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
