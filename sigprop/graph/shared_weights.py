"""One weight in several places: layers that are run again, a norm that serves two sums.

Every use of a weight counts as a draw of its own. That is wrong where two of its outputs are added (`x + W f(x)` run
twice), where its own output comes back to it (`P^T P x`), and where the gradients of its uses are in step; nothing
here follows any of these, so that the states say so. Lookups of a table are followed (see `rules.embedding`), and so
is the head tied to it (see `tied`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from sigprop.graph.graph import Bound, Node
from sigprop.graph.shared_parts import SharedParts
from sigprop.graph.weights import Record, Weight, leaves
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.linear import Linear

MATTERS = 0.1
"""Of a second moment: what a product of two outputs of one weight may at most be, unmentioned."""
IN_STEP = "uses of one weight are taken as draws of their own"
_TAKES_A_PART = frozenset(
    ["getitem", "narrow", "select", "split", "split_with_sizes", "chunk", "unbind", "iter", "index_select"]
)
Entries = tuple[Any, ...]
"""A parameter, and what is taken of it."""
Received = tuple[Node, float]
"""The node that a weight makes, and the energy of the gradient that the weight gets there."""
LOSS: frozenset[Entries] = frozenset([("the loss",)])
Use = tuple[Entries, Node]
"""Entries, and the node that multiplies with them."""


def entries_of(weight: Weight) -> tuple[Entries, ...]:
    """The entries of parameters that a weight is made of; two slices of one parameter have none in common."""
    if weight.name:
        return ((weight.name,),)
    taken: tuple[Hashable, ...] = ()
    if weight.call is not None and weight.call.name in _TAKES_A_PART:
        numbers = [
            repr(item) for item in leaves((weight.call.args, weight.call.kwargs)) if not isinstance(item, Record)
        ]
        taken = (weight.call.name, *numbers, weight.output)
    return tuple((*inner, *taken) for parent, _ in weight.parents for inner in entries_of(parent))


def own_entries(op: Op, weights: Bound) -> frozenset[Entries]:
    """Entries of the weights that an op multiplies with."""
    if not op.multiplies:
        return frozenset()
    return frozenset(entries for weight, _ in weights.values() for entries in entries_of(weight))


class WeightsBehind:
    """For each node the uses of weights whose outputs it is a sum of."""

    def __init__(self, parts: SharedParts):
        self._parts = parts
        self._found: dict[Node, frozenset[Use]] = {}
        self._used: set[Entries] = set()

    def used_before(self, own: frozenset[Entries]) -> bool:
        """Whether a linear map seen earlier multiplied with the same entries."""
        again = not self._used.isdisjoint(own)
        self._used |= own
        return again

    def of(self, node: Node) -> frozenset[Use]:
        """Those of the parts that a node holds; of a function of weights' outputs, those weights."""
        waiting = [node]
        while waiting:
            item = waiting[-1]
            above = self._above(item)
            missing = [other for other in above if other not in self._found]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            entries = own_entries(item.op, item.weights) if not above else ()
            own = frozenset((each, item) for each in entries)
            self._found[item] = own.union(*(self._found[other] for other in above))
        return self._found[node]

    def _above(self, node: Node) -> list[Node]:
        held = self._parts.held(node)
        if held:
            return [item for item, _ in held]
        return [] if node.weights else list(node.inputs)

    def in_common(self, first: Node, second: Node) -> list[tuple[Node, Node]]:
        """Parts of one and of the other tensor that were made by different uses of one weight."""
        if not _used_twice(self.of(first), self.of(second)):
            return []
        mine, theirs = self._parts.ends(first), self._parts.ends(second)
        return [(one, other) for one in mine for other in theirs if _used_twice(self.of(one), self.of(other))]


def _used_twice(first: frozenset[Use], second: frozenset[Use]) -> bool:
    """Whether one weight is used in both, in different places: two slices of one output have no weights in common."""
    places: dict[Entries, set[Node]] = {}
    for entries, node in first:
        places.setdefault(entries, set()).add(node)
    return any(places.get(entries, {node}) != {node} for entries, node in second)


class WeightsAhead:
    """For each node the matrices that its gradient comes through last; `LOSS` where it comes through none."""

    def __init__(self, nodes: Sequence[Node]):
        self._found: dict[Node, frozenset[Entries]] = {}
        for node in reversed(nodes):
            own = own_entries(node.op, node.weights) if isinstance(node.op, Linear) else frozenset()
            for source in node.inputs:
                self._found[source] = self._found.get(source, frozenset()) | (own or self.of(node))

    def of(self, node: Node) -> frozenset[Entries]:
        return self._found.get(node) or LOSS


def uses_in_step(nodes: Sequence[Node], uses: dict[Entries, list[Received]]) -> Iterator[Entries]:
    """Entries whose gradients may add; those that come through different matrices have nothing in common."""
    suspected = {key: found for key, found in uses.items() if in_step(energy for _, energy in found)}
    if not suspected:
        return
    ahead = WeightsAhead(nodes)
    for key, found in suspected.items():
        groups: list[tuple[frozenset[Entries], list[float]]] = []
        for node, energy in found:
            weights, energies = ahead.of(node), [energy]
            for group in [group for group in groups if group[0] & weights]:
                groups.remove(group)
                weights, energies = weights | group[0], energies + group[1]
            groups.append((weights, energies))
        if any(in_step(energies) for _, energies in groups):
            yield key


def in_step(energies: Iterable[float]) -> bool:
    """Whether gradients of so many uses, with these energies, may add to much more than their sum."""
    found = [max(energy, 0.0) for energy in energies]
    total = sum(found)
    return total > 0.0 and sum(map(math.sqrt, found)) ** 2 > (1.0 + MATTERS) * total
