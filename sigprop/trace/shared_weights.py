"""One weight in several places: layers that are run again, a norm that serves two sums.

Every use of a weight counts as a draw of its own. That is wrong where two of its outputs are added (`x + W f(x)` run
twice), where its own output comes back to it (`P^T P x`), and where the gradients of its uses are in step; nothing
here follows any of these, so that the states say so. Lookups of a table are followed (see `rules.embedding`), and so
is the head tied to it (see `tied`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sigprop.theory import Node
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.lookup import Lookup
from sigprop.theory.ops.residual import Residual
from sigprop.trace.record import Record, Weight, leaves
from sigprop.trace.shared_parts import SharedParts, added, joined

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

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


class WeightsBehind:
    """For each node the uses of weights whose outputs it is a sum of."""

    def __init__(self, capture: Capture):
        self._capture = capture
        self._found: dict[Node, frozenset[Use]] = {}
        self._used: set[Entries] = set()

    def used_before(self, node: Node) -> bool:
        """Whether a linear map seen earlier multiplied with the same entries."""
        own = self.own(node)
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
            own = frozenset((entries, item) for entries in self.own(item)) if not above else frozenset()
            self._found[item] = own.union(*(self._found[other] for other in above))
        return self._found[node]

    def own(self, node: Node) -> frozenset[Entries]:
        """Entries of the weights that an op multiplies with."""
        if isinstance(node.op, Lookup):
            return frozenset()
        bound = self._capture.bindings.get(node, {})
        return frozenset(entries for weight, _ in bound.values() for entries in entries_of(weight))

    def _above(self, node: Node) -> list[Node]:
        held = self._capture.shared_parts.held(node)
        if held:
            return [item for item, _ in held]
        return [] if node in self._capture.bindings else list(node.inputs)


def summed(capture: Capture, op: Residual, first: Node, second: Node) -> Node:
    """The sum of two tensors; in doubt where outputs of one weight are large parts of both."""
    op = replace(op, rows_in_branch=_brings_rows(capture, second) and not _brings_rows(capture, first))
    made = added(capture, op, first, second)
    if not capture.preview:
        _note_sum(capture, made, first, second)
    return made


def _brings_rows(capture: Capture, node: Node) -> bool:
    """Whether a tensor is a sum with rows of a table among its parts."""
    return bool(capture.embedded) and not capture.embedded.keys().isdisjoint(capture.shared_parts.all_above(node))


def have_in_common(capture: Capture, first: Node, second: Node) -> bool:
    """Whether two tensors are sums with one part, or with outputs of one weight."""
    parts = capture.shared_parts
    return bool(parts.of(first) & parts.of(second)) or bool(_same_weights(capture, first, second))


def side_by_side(capture: Capture, *nodes: Node) -> Node:
    """Positions one after another; in doubt where two tensors are outputs of one weight, which have more in common."""
    pairs = ((first, second) for number, second in enumerate(nodes) for first in nodes[:number])
    doubted = not capture.preview and any(_same_weights(capture, *pair) for pair in pairs)
    return joined(capture, *nodes, doubt=IN_STEP if doubted else "")


def _note_sum(capture: Capture, made: Node, first: Node, second: Node) -> None:
    pairs = _same_weights(capture, first, second)
    if not pairs:
        return
    mine, theirs = (_sizes(capture.shared_parts, node) for node in (first, second))
    scale = abs(float(made.op.skip * made.op.branch)) if isinstance(made.op, Residual) else 1.0
    product = sum(mine[one] * theirs[other] for one, other in pairs) * scale
    if 2.0 * product > MATTERS * float(made.signal.kernel.diagonal.mean()):
        capture.doubt(made, IN_STEP)


def _same_weights(capture: Capture, first: Node, second: Node) -> list[tuple[Node, Node]]:
    """Parts of one and of the other tensor that were made by different uses of one weight."""
    behind, parts = capture.weights_behind, capture.shared_parts
    if not _used_twice(behind.of(first), behind.of(second)):
        return []
    mine, theirs = parts.ends(first), parts.ends(second)
    return [(one, other) for one in mine for other in theirs if _used_twice(behind.of(one), behind.of(other))]


def _used_twice(first: frozenset[Use], second: frozenset[Use]) -> bool:
    """Whether one weight is used in both, in different places: two slices of one output have no weights in common."""
    places: dict[Entries, set[Node]] = {}
    for entries, node in first:
        places.setdefault(entries, set()).add(node)
    return any(places.get(entries, {node}) != {node} for entries, node in second)


def _sizes(parts: SharedParts, node: Node) -> dict[Node, float]:
    """Root of the mean square of what a node holds of each of its parts."""
    found = {}
    for part, pieces in parts.pieces(node, parts.ends(node)).items():
        square = sum(float((item.share**2 * part.signal.kernel.diagonal[item.index]).mean()) for item in pieces)
        found[part] = math.sqrt(max(square, 0.0))
    return found


def note_return(capture: Capture, made: Node) -> None:
    """Doubt a linear map of what it made itself: `P^T P x` is not small."""
    if not isinstance(made.op, Linear) or not made.inputs:
        return
    behind, parts, source = capture.weights_behind, capture.shared_parts, made.inputs[0]
    if not behind.used_before(made):
        return
    own = behind.own(made)
    if any(behind.own(part) & own for part in parts.ends(source)):
        capture.doubt(made, IN_STEP)


class WeightsAhead:
    """For each node the matrices that its gradient comes through last; `LOSS` where it comes through none."""

    def __init__(self, capture: Capture):
        self._found: dict[Node, frozenset[Entries]] = {}
        for node in reversed(capture.tape.nodes):
            own = capture.weights_behind.own(node) if isinstance(node.op, Linear) else frozenset()
            for source in node.inputs:
                self._found[source] = self._found.get(source, frozenset()) | (own or self.of(node))

    def of(self, node: Node) -> frozenset[Entries]:
        return self._found.get(node) or LOSS


def uses_in_step(capture: Capture, uses: dict[Entries, list[Received]]) -> Iterator[Entries]:
    """Entries whose gradients may add; those that come through different matrices have nothing in common."""
    suspected = {key: found for key, found in uses.items() if in_step(energy for _, energy in found)}
    if not suspected:
        return
    ahead = WeightsAhead(capture)
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
