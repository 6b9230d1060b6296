"""What uses of one weight have in common: a block that is visited again, the cell of a recurrence.

With one op and one set of weights, outputs of two visits are positions of one output: the op maps the two inputs, one
after another, with what these have in common. Sums and norms hold what their inputs have in common. So the covariance
of two tensors is found from the last ops back to where both are one tensor, or no weight behind them is the same. That
of gradients is found from the first ops on (`visits_back`).

In the limit of infinite width, for weights that no transpose of them meets; what finite width leaves open: `of_visits`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.compat import viewed_tensor
from sigprop.graph.graph import Node, Weight
from sigprop.graph.shared_parts import own_entries, settled
from sigprop.theory import Dense, Signal
from sigprop.theory.activations import ActivationFunction
from sigprop.theory.drawing import root_of
from sigprop.theory.ops.attention import DrawnAttention
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.batch_norm import BatchNorm
from sigprop.theory.ops.cat import CatPositions
from sigprop.theory.ops.layer_norm import Norm
from sigprop.theory.ops.residual import VisitedResidual
from sigprop.theory.ops.sources import GivenSignal
from sigprop.theory.ops.token_map import TokenMap

Pair = tuple[Any, Any]
Rule = tuple[list[Pair], Callable[..., Tensor | None]]
"""Pairs that a block of numbers is made of, and how."""
Roots = tuple[dict[Node, Tensor], dict[Node, Tensor]]
UNKNOWN: Rule = [], lambda: None
GRID = torch.linspace(-6.0, 6.0, 61, dtype=torch.float64)
"""Where two functions are compared."""
MOST = 1 << 26
"""Numbers that are kept, 512 MB of them; beyond, what visits have in common is not known."""


class Pairs(ABC):
    """Numbers for the pairs of positions of two things, made of those of other pairs."""

    def __init__(self, states: Any):
        self.states, self.parts = states, states.shared_parts
        self._known: dict[Pair, Tensor | None] = {}
        self._rules: dict[Pair, Rule] = {}
        self._places: dict[Node, int] = {}
        self._numbers = 0

    def of(self, first: Any, second: Any) -> Tensor | None:
        """None where it is not known."""
        return settled((first, second), self._known, self._above, self._made)

    def _above(self, pair: Pair) -> list[Pair]:
        if pair not in self._rules:
            self._rules[pair] = self.rule(*pair) if self._numbers < MOST else UNKNOWN
        return self._rules[pair][0]

    def _made(self, pair: Pair) -> Tensor | None:
        above, rule = self._rules.pop(pair)
        found = [self._known[other] for other in above]
        made = None if any(item is None for item in found) else rule(*found)
        self._numbers += 0 if made is None or viewed_tensor(made) is not None else made.numel()
        return made

    @abstractmethod
    def rule(self, first: Any, second: Any) -> Rule:
        """Of which other pairs the numbers of a pair are made, and how."""

    def place(self, node: Node) -> int:
        if node not in self._places:
            self._places = {item: place for place, item in enumerate([*self.states.nodes, *self.states.with_loss])}
        return self._places[node]

    def nothing(self, first: Node, second: Node) -> Rule:
        sizes = [self.states.positions(node) for node in (first, second)]
        return [], lambda: torch.zeros(sizes, dtype=torch.float64)

    def is_fixed(self, node: Node) -> bool:
        """Whether an op holds its inputs in a way that is the same in all initializations and at all visits."""
        held, several = self.parts.held(node), node.op.by_position and len(node.inputs) > 1
        laws = (self.states.law(weight) for weight, _ in node.weights.values())
        linear = bool(held) and not several and not any(item.bent for _, item in held)
        return linear and (node in self.states.graph.origins or all(law.variance == 0.0 for law in laws))

    def alike(self, first: Node, second: Node) -> bool:
        """Whether two tensors are made by one op, position by position, with one set of weights."""
        one, other = (self.states.unbound(node) for node in (first, second))
        same = one.by_position and equal(one, other) and first.weights.keys() == second.weights.keys()
        return same and all(same_weight(weight, second.weights[key][0]) for key, (weight, _) in first.weights.items())

    def drawn_alike(self, first: Node, second: Node) -> list[Pair]:
        """For two attentions with one set of weights, what both are drawn from."""
        one, other = (self.states.op(node) for node in (first, second))
        if isinstance(one, DrawnAttention) and isinstance(other, DrawnAttention) and one.draws.alike(other.draws):
            return list(zip(one.draws.drawn_nodes(), other.draws.drawn_nodes(), strict=True))
        return []


class Visits(Pairs):
    """Covariances of tensors in some states."""

    def __init__(self, states: Any):
        super().__init__(states)
        self._passed: dict[Node, float] = {}

    def rule(self, first: Node, second: Node) -> Rule:
        if first is second:
            return [], lambda: self.states.signal(first).covariance.values
        if self.place(first) < self.place(second):
            return [(second, first)], lambda found: found.T
        if self.alike(first, second):
            return list(zip(first.inputs, second.inputs, strict=True)), lambda *_: self._of_visits(first, second)
        if drawn := self.drawn_alike(first, second):
            return drawn, lambda *_: self._of_draws(first, second, drawn)
        if self._are_one_norm(first, second):
            return [(first.inputs[0], second.inputs[0])], lambda found: self._of_batches(first, second, found)
        for node, other in ((first, second), (second, first)):
            if self.is_fixed(node):
                return self._through(node, other, node is second)
            if isinstance(node.op, CatPositions):
                return self._one_after_another(node.inputs[: node.op.count], other, node is second)
            if isinstance(node.op, TokenMap):
                return self._mapped(node.op.matrix, node.inputs[0], other, node is second)
        one, its = first.op, second.op
        if isinstance(one, GivenSignal) and isinstance(its, GivenSignal):
            return [], lambda: _of_given(one, its)
        if self._behind(first).isdisjoint(self._behind(second)):
            return self.nothing(first, second)
        for node, other in ((first, second), (second, first)):
            if node.op.by_position and self.parts.held(node) and other.op.reaches == 0:
                return self._through(node, other, node is second)
        return UNKNOWN

    def passed(self, node: Node) -> float:
        """How often the size of a tensor came through the same weights; behind a norm it did not."""

        def made(item: Node) -> float:
            op, before = self.states.op(item), max((self._passed[other] for other in above(item)), default=0.0)
            more = isinstance(op, VisitedResidual) and op.between is not None
            return before + (op.more(self.states.signal(item), *map(self.states.signal, item.inputs)) if more else 0.0)

        def above(item: Node) -> Sequence[Node]:
            return () if isinstance(item.op, Norm) else item.inputs

        return settled(node, self._passed, above, made)

    def _behind(self, node: Node) -> frozenset[Any]:
        """What a tensor is a function of: weights, and tensors with randomness of their own."""
        reached = self.parts.reached(node)
        return reached.union(*(own_entries(item.op, item.weights) for item in reached))

    def _through(self, node: Node, other: Node, turned: bool) -> Rule:
        """By what a tensor holds of its inputs."""
        above = self.parts.held(node)

        def made(*found: Tensor) -> Tensor:
            total = added(*(held.of(x) * column(held.share) for (_, held), x in zip(above, found, strict=True)))
            return total.T if turned else total

        return [(item, other) for item, _ in above], made

    def _one_after_another(self, inputs: Sequence[Node], other: Node, turned: bool) -> Rule:
        return [(item, other) for item in inputs], lambda *found: torch.cat(found).T if turned else torch.cat(found)

    def _mapped(self, matrix: Tensor, source: Node, other: Node, turned: bool) -> Rule:
        """By a fixed map over positions."""
        return [(source, other)], lambda found: (matrix @ found).T if turned else matrix @ found

    def one_after_another(self, first: Node, second: Node) -> Signal | None:
        """Two tensors as one."""
        between = self.of(first, second)
        if between is None:
            return None
        one, other = (self.states.signal(node) for node in (first, second))
        mean = torch.cat((one.mean, other.mean))
        values = blocks(one.covariance.values, other.covariance.values, between)
        return replace(one, kernel=Dense(values + mean[:, None] * mean), mean=mean)

    def inputs(self, first: Node, second: Node) -> list[Signal] | None:
        """Those of two nodes as those of one."""
        found = [self.one_after_another(*pair) for pair in zip(first.inputs, second.inputs, strict=True)]
        known = [item for item in found if item is not None]
        return known if len(known) == len(found) else None

    def _of_visits(self, first: Node, second: Node) -> Tensor | None:
        inputs, count = self.inputs(first, second), self.states.positions(first)
        return None if inputs is None else self.states.unbound(first).forward(*inputs).covariance.values[:count, count:]

    def _are_one_norm(self, first: Node, second: Node) -> bool:
        """Whether one BatchNorm made both, each with the statistics of its own batch."""
        one, other = (self.states.unbound(node) for node in (first, second))
        keys = first.weights.keys() == second.weights.keys()
        same = isinstance(one, BatchNorm) and isinstance(other, BatchNorm) and keys
        return same and all(same_weight(weight, second.weights[key][0]) for key, (weight, _) in first.weights.items())

    def _of_batches(self, first: Node, second: Node, found: Tensor) -> Tensor:
        """Centred and scaled at both ends, as a large batch is."""
        one, other = (self.states.op(node).level(self.states.signal(node.inputs[0])) for node in (first, second))
        centred = found - found.mean(0) - found.mean(1, keepdim=True) + found.mean()
        return centred * (self.states.op(first).gain_second_moment / (one * other) ** 0.5)

    def _of_draws(self, first: Node, second: Node, drawn: list[Pair]) -> Tensor | None:
        roots, one, other = self.roots(drawn), self.states.op(first), self.states.op(second)
        means = (self.states.signal(node).mean for node in (first, second))
        return None if roots is None else one.of_visits(other, roots, *means)

    def roots(self, drawn: list[Pair]) -> Roots | None:
        """Roots of the kernels of all that two attentions are drawn from, to which the same random numbers belong."""
        mine, theirs = {}, {}
        for first, second in drawn:
            both = self.one_after_another(first, second)
            if both is None:
                return None
            sizes = [self.states.positions(node) for node in (first, second)]
            mine[first], theirs[second] = root_of(both.covariance.values).split(sizes)
        return mine, theirs


def _of_given(first: GivenSignal, second: GivenSignal) -> Tensor:
    """Numbers of two inputs: views of one image are much the same."""
    one, other, means = first.numbers, second.numbers, (first.signal.mean, second.signal.mean)
    if one is None or other is None or one.shape[1] != other.shape[1]:
        return torch.zeros(len(means[0]), len(means[1]), dtype=torch.float64)
    return one @ other.T / one.shape[1] - means[0][:, None] * means[1]


def added(*found: Tensor) -> Tensor:
    return sum(found, start=torch.zeros((), dtype=torch.float64))


def column(share: Tensor | float) -> Tensor:
    return torch.as_tensor(share, dtype=torch.float64).reshape(-1, 1)


def blocks(first: Tensor, second: Tensor, between: Tensor) -> Tensor:
    return torch.cat((torch.cat((first, between), 1), torch.cat((between.T, second), 1)))


def equal(first: Any, second: Any) -> bool:
    """Whether two ops, or arguments, are equal; tensors and functions are compared by their numbers."""
    if first is second:
        return True
    if isinstance(first, ActivationFunction) and isinstance(second, ActivationFunction):
        return torch.equal(first(GRID), second(GRID))
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, Op) and is_dataclass(first):
        return all(equal(getattr(first, item.name), getattr(second, item.name)) for item in fields(first))
    return bool(first == second)


def same_weight(first: Weight, second: Weight) -> bool:
    """Whether the entries are those of one parameter, in the same places."""
    if first is second:
        return True
    one, other = ((w.entries, w.shape, w.call and w.call.name, len(w.parents)) for w in (first, second))
    pairs = zip(first.parents, second.parents, strict=False)
    return one == other and bool(first.parents) and all(same_weight(a.weight, b.weight) for a, b in pairs)
