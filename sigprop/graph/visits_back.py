"""What gradients have in common that come through several uses of one weight (see `visits`).

The gradient at a tensor is the sum of those that were sent to it. Weights renew it; two visits send what the op of both
makes of the gradients at its outputs, one after another; sums and norms pass on what stands in common.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sigprop.graph.graph import Node
from sigprop.graph.shared_parts import own_entries
from sigprop.graph.visits import UNKNOWN, Pair, Pairs, Rule, added, blocks, column, equal
from sigprop.theory import Dense, Gradient
from sigprop.theory.ops.attention import DrawnAttention
from sigprop.theory.ops.base import Carried
from sigprop.theory.ops.cat import CatPositions
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.token_map import TokenMap

MAPS = CatPositions, TokenMap
"""Fixed maps over positions."""
Sent = tuple[Node, int]
"""A gradient as a node sends it to one of its inputs."""


class GradientsOfVisits(Pairs):
    """What whole gradients, at a node, and those that a node sends have in common."""

    def __init__(self, states: Any):
        super().__init__(states)
        self._drawn: dict[Pair, list[Tensor] | None] = {}

    @cached_property
    def _edges(self) -> dict[Node, list[Sent]]:
        found: dict[Node, list[Sent]] = {}
        for node in self.states.with_loss:
            for number, source in enumerate(node.inputs):
                found.setdefault(source, []).append((node, number))
        return found

    def _sent_to(self, node: Node) -> list[Sent]:
        return [edge for edge in self._edges.get(node, ()) if edge[0] in self.states.gradients]

    def among(self, node: Node) -> Tensor | None:
        """What those that were sent to a node add to the sum of their kernels."""
        total = torch.zeros((), dtype=torch.float64)
        for place, second in enumerate(edges := self._sent_to(node)):
            for first in edges[:place]:
                found = self.of(first, second)
                if found is None:
                    return None
                total = total + found + found.T
        return total

    def of_weights(self, first: Node, second: Node) -> dict[str, float] | None:
        """What the parameters of an op receive beyond the sum of what two uses of them bring."""
        lookups = self.states.graph.lookups
        if first in lookups and second in lookups:
            return self._of_rows(first, second, *(lookups[node][1] for node in (first, second)))
        between = self.of(first, second) if self.alike(first, second) else None
        inputs = None if between is None else self.states.visits.inputs(first, second)
        if between is None or inputs is None:
            return None
        op = self.states.unbound(first)
        both, apart = (op.parameters(self._both(first, second, x), *inputs) for x in (between, between * 0.0))
        pairs = zip(both, apart, strict=True)
        return {one.name: float(one.grad_second_moment - other.grad_second_moment) for one, other in pairs}

    def _of_rows(self, first: Node, second: Node, ids: Tensor, others: Tensor) -> dict[str, float] | None:
        """Of a table that is read twice: where both read one row."""
        between, op = self.of(first, second), self.states.op(first)
        if between is None:
            return None
        same = (ids[:, None] == others).double()
        return {"weight": 2.0 * op.channels * float((between * same).sum()) / math.prod(op.shape)}

    def _both(self, first: Node, second: Node, between: Tensor) -> Gradient:
        kernels = (self.states.gradients[node].kernel.values for node in (first, second))
        return Gradient(Dense(blocks(*kernels, between=between)))

    def rule(self, first: Node | Sent, second: Node | Sent) -> Rule:
        if isinstance(first, Node):
            return self._of_whole(first, second)
        node, number = first
        if self.is_fixed(node) or isinstance(node.op, MAPS):
            return self._back(first, second)
        if isinstance(second, Node):
            edges = self._sent_to(second)
            return ([(first, edge) for edge in edges], added) if edges else self.nothing(node.inputs[number], second)
        other, place = second
        if self.is_fixed(other) or isinstance(other.op, MAPS):
            return [(second, first)], lambda found: found.T
        if number == place and self.alike(node, other):
            return [(node, other)], lambda found: self._of_visits(node, other, number, found)
        if number == place and (drawn := self.drawn_alike(node, other)):
            return [(node, other)], lambda found: self._of_draws(node, other, number, drawn, found)
        mine, theirs = (own_entries(item.op, item.weights) for item in (node, other))
        if _apart(node, other) or (mine and theirs and mine.isdisjoint(theirs)):
            return self.nothing(node.inputs[number], other.inputs[place])
        if theirs and not mine and node.op.holds_inputs:
            return self._back(first, second)
        if mine and not theirs and other.op.holds_inputs:
            return [(second, first)], lambda found: found.T
        return UNKNOWN

    def _of_whole(self, first: Node, second: Node | Sent) -> Rule:
        if first is second:
            return [], lambda: self.states.gradients[first].kernel.values
        if not isinstance(second, Node) or self.place(second) < self.place(first):
            return [(second, first)], lambda found: found.T
        edges = self._sent_to(first)
        return ([(edge, second) for edge in edges], added) if edges else self.nothing(first, second)

    def _back(self, sent: Sent, other: Any) -> Rule:
        """By what the output of an op holds of its input."""
        node, number = sent
        if isinstance(node.op, TokenMap):
            matrix = node.op.matrix
            return [(node, other)], lambda found: matrix.T @ found
        if isinstance(node.op, CatPositions):
            own = node.op.block_of(number, tuple(map(self.states.signal, node.inputs)))
            return UNKNOWN if node.op.pieces else ([(node, other)], lambda found: found[own])
        held = self.states.op(node).carried(number, *map(self.states.signal, (node, *node.inputs)))
        if held is None or getattr(node.op, "pieces", ()):
            return UNKNOWN
        count = self.states.positions(node.inputs[number])
        return [(node, other)], lambda found: _returned(held, found, count)

    def _of_visits(self, first: Node, second: Node, number: int, between: Tensor) -> Tensor | None:
        visits, count = self.states.visits, self.states.positions(first.inputs[number])
        inputs, output = visits.inputs(first, second), visits.one_after_another(first, second)
        if inputs is None or output is None:
            return None
        made = self.states.unbound(first).backward(self._both(first, second, between), output, *inputs)[number]
        return None if made is None else made.kernel.values[:count, count:]

    def _of_draws(self, first: Node, second: Node, number: int, drawn: list[Pair], between: Tensor) -> Tensor | None:
        if (first, second) not in self._drawn:
            roots, one, other = self.states.visits.roots(drawn), self.states.op(first), self.states.op(second)
            gradient = self._both(first, second, between).kernel.values
            made = None if roots is None else one.gradients_of_visits(other, roots, gradient)
            self._drawn[first, second] = made
        found = self._drawn[first, second]
        return None if found is None else found[number]


def _apart(node: Node, other: Node) -> bool:
    """Whether two gradients arrive at channels of their own: slices, values and what weights are drawn from."""
    one, its = (node.op, other.op) if isinstance(other.op, Narrow) else (other.op, node.op)
    if not isinstance(its, Narrow) or not its.taken:
        return False
    if isinstance(one, DrawnAttention):
        return equal((node if one is node.op else other).inputs[-1].op, its)
    if not isinstance(one, Narrow) or not one.taken or (one.share, one.taken[0]) != (its.share, its.taken[0]):
        return False
    return one.taken[2] <= its.taken[1] or its.taken[2] <= one.taken[1]


def _returned(held: Carried, values: Tensor, count: int) -> Tensor:
    """What an input gets, position by position, of what the output holds of it."""
    values = values * column(held.share) * held.passed
    if held.index is None:
        return values
    return torch.zeros(count, values.shape[1], dtype=values.dtype).index_add(0, held.index, values)
