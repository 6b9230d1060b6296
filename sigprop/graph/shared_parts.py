"""What two tensors have in common although each counts as drawn afresh: the parts that both are sums of.

A sum counts as independent of what it was made of, which is right when a branch with weights of its own is added. Where
a tensor is added again later (an input injected at every cycle, experts that return their input), its occurrences add
up: with `a = sum_k a_k x_k + ..` and `b = sum_k b_k x_k + ..`, per token, `E a b' = sum_k a_k b_k' Cov(x_k)`.

One weight in several places: layers that are run again, a norm that serves two sums. A sum holds outputs of each use as
tensors of their own; where those of one weight meet in it, and where gradients of its uses meet, `visits` and
`visits_back` know what they have in common, or the states say that nobody does: where its own output comes back to a
weight (`P^T P x`), and where functions are drawn. Lookups of a table are followed (see `rules.embedding`), and so is
the head tied to it (see `tied`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from sigprop.graph.graph import Bound, Entries, Node
from sigprop.theory import Gradient
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import Piece, SharedResidual

MATTERS = 0.1
"""Of a second moment: what a product of two outputs of one weight may at most be, unmentioned."""
IN_STEP = "uses of one weight are taken as independent weights"
Received = tuple[Node, float]
"""The node that a weight makes, and the energy of the gradient that the weight gets there."""
LOSS: frozenset[Entries] = frozenset([("the loss",)])
Item = TypeVar("Item")
Kind = TypeVar("Kind")
Use = tuple[Entries, Node]
"""Entries, and the node that multiplies with them."""


def settled(node: Item, found: dict[Item, Kind], above: Callable[[Item], Iterable[Item]], made: Callable[[Item], Kind]):
    """What is made of a node once those above it are `found`; chains may be long."""
    waiting = [node]
    while waiting:
        missing = [other for other in above(waiting[-1]) if other not in found]
        waiting += missing
        if not missing:
            item = waiting.pop()
            found[item] = made(item)
    return found[node]


def own_entries(op: Op, weights: Bound) -> frozenset[Entries]:
    """Entries of the weights that an op multiplies with."""
    if not op.multiplies:
        return frozenset()
    return frozenset(entries for weight, _ in weights.values() for entries in weight.entries)


class WeightsBehind:
    """For each node the uses of weights whose outputs it is a sum of."""

    def __init__(self, parts: SharedParts):
        self._parts = parts
        self._found: dict[Node, frozenset[Use]] = {}
        self._used: set[Entries] = set()

    def doubts_of_return(self, op: Op, weights: Bound, source: Node) -> tuple[str, ...]:
        """The doubt of a linear map of what it made itself: `P^T P x` is not small. Asked once for each, in order."""
        own = own_entries(op, weights)
        again = not self._used.isdisjoint(own)
        self._used |= own
        ends = self._parts.ends(source) if again else ()
        return (IN_STEP,) if any(own_entries(part.op, part.weights) & own for part in ends) else ()

    def of(self, node: Node) -> frozenset[Use]:
        """Those of the parts that a node holds; of a function of weights' outputs, those weights."""
        return settled(node, self._found, self._above, self._used_at)

    def _used_at(self, node: Node) -> frozenset[Use]:
        above = self._above(node)
        entries = own_entries(node.op, node.weights) if not above else ()
        return frozenset((each, node) for each in entries).union(*(self._found[other] for other in above))

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


def matrices_ahead(nodes: Sequence[Node]) -> dict[Node, frozenset[Entries]]:
    """For each node the matrices that its gradient comes through last; `LOSS` where it comes through none."""
    found: dict[Node, frozenset[Entries]] = {}
    for node in reversed(nodes):
        own = own_entries(node.op, node.weights) if isinstance(node.op, Linear) else frozenset()
        for source in node.inputs:
            found[source] = found.get(source, frozenset()) | (own or found.get(node, LOSS))
    return found


def uses_that_add_up(nodes: Sequence[Node], uses: dict[Entries, list[Received]]) -> Iterator[Entries]:
    """Entries whose gradients may add; those that come through different matrices have nothing in common."""
    suspected = {key: found for key, found in uses.items() if may_add_up(energy for _, energy in found)}
    if not suspected:
        return
    ahead = matrices_ahead(nodes)
    for key, found in suspected.items():
        groups: list[tuple[frozenset[Entries], list[float]]] = []
        for node, energy in found:
            weights, energies = ahead.get(node, LOSS), [energy]
            for group in [group for group in groups if group[0] & weights]:
                groups.remove(group)
                weights, energies = weights | group[0], energies + group[1]
            groups.append((weights, energies))
        if any(may_add_up(energies) for _, energies in groups):
            yield key


def may_add_up(energies: Iterable[float]) -> bool:
    """Whether gradients of so many uses, with these energies, may add to much more than their sum."""
    found = [max(energy, 0.0) for energy in energies]
    total = sum(found)
    return total > 0.0 and sum(map(math.sqrt, found)) ** 2 > (1.0 + MATTERS) * total


class PathsAhead:
    """For each node the matrices that a gradient comes through on the way to it: on every path, and on some.

    Paths through different uses of one weight, and otherwise through the same weights, bring gradients that add up: the
    cell of a recurrence, or a stack of one block that is visited again.
    """

    def __init__(self, nodes: Sequence[Node]):
        uses: dict[Entries, set[Node]] = {}
        for node in nodes:
            for key in own_entries(node.op, node.weights):
                uses.setdefault(key, set()).add(node)
        self.reused = frozenset(key for key, found in uses.items() if len(found) > 1)
        self._every: dict[Node, frozenset[Entries]] = {}
        self._some: dict[Node, frozenset[Entries]] = {}
        self._arrived: dict[Node, list[Received]] = {}
        for node in reversed(nodes) if self.reused else ():
            every, some = self._through(node)
            for source in node.inputs:
                self._every[source] = self._every.get(source, every) & every
                self._some[source] = self._some.get(source, some) | some

    def _through(self, node: Node) -> tuple[frozenset[Entries], frozenset[Entries]]:
        own = own_entries(node.op, node.weights)
        return own | self._every.get(node, frozenset()), own | self._some.get(node, frozenset())

    def arrives(self, source: Node, node: Node, gradient: Gradient) -> None:
        """Note what a node sends to one of its inputs; for who reuses weights, which no grid of settings does."""
        self._arrived.setdefault(source, []).append((node, float(gradient.energy())))

    def energies(self, source: Node) -> list[float]:
        return [energy for _, energy in self._arrived.get(source, ())]

    def add_up(self, source: Node) -> bool:
        """Whether what arrived along two paths may be more than the sum of both energies."""
        found = self._arrived.pop(source, [])
        return any(
            self._repeat(first, second) and may_add_up((one, other))
            for place, (second, other) in enumerate(found)
            for first, one in found[:place]
            if first is not second
        )

    def _repeat(self, first: Node, second: Node) -> bool:
        (every, some), (each, any_) = self._through(first), self._through(second)
        return bool(some & any_ & self.reused) and every <= any_ and each <= some


Pieces = dict[Node, list[Piece]]
Shared = tuple[Node, Piece, Piece]
"""A part of two tensors, and what either holds of it."""


class SharedParts:
    """For each node the parts that it is a sum of, as bits of a number, and what it holds of them in some states."""

    def __init__(self, states: Any) -> None:
        self._states = states
        self._parts: dict[Node, int] = {}
        self._held: dict[Node, tuple[tuple[Node, Carried], ...]] = {}
        self._reached: dict[Node, frozenset[Node]] = {}
        self._count = 0

    def take_from(self, node: Node, origin: Node, index: Tensor) -> None:
        """From now on a node counts as positions of another one that it was not made of: rows of a table."""
        self._states.graph.origins.setdefault(node, {})[origin] = index
        self.forget()

    def forget(self) -> None:
        """After states, or what counts as a part, have changed."""
        self._parts, self._held, self._reached = {}, {}, {}

    def of(self, node: Node) -> int:
        if node not in self._parts:
            settled(node, self._parts, self._holds, self._bits)
        return self._parts[node]

    def _holds(self, node: Node) -> list[Node]:
        return [above for above, _ in self.held(node)]

    def _bits(self, node: Node) -> int:
        """Those of the parts above; a bit of its own where there are none."""
        found = functools.reduce(operator.or_, (self._parts[above] for above in self._holds(node)), 0)
        if not found:
            found = 1 << self._count
            self._count += 1
        return found

    def held(self, node: Node, forks: Set[Node] = frozenset()) -> tuple[tuple[Node, Carried], ...]:
        """The inputs that a node holds, and how; not those of which it holds nothing, as a product with a tensor of
        mean zero does of its other factor. Of several tensors that it counts as positions of, one of the forks."""
        origins = self._states.graph.origins.get(node)
        if origins is not None:
            chosen = next((origin for origin in origins if origin in forks), next(reversed(origins)))
            return ((chosen, Carried(1.0, origins[chosen])),)
        if node not in self._held:
            self._held[node] = tuple(self._held_by_op(node))
        return self._held[node]

    def _held_by_op(self, node: Node) -> Iterator[tuple[Node, Carried]]:
        op, states = self._states.op(node), self._states
        if not op.holds_inputs:
            return
        output, signals = states.signal(node), [states.signal(item) for item in node.inputs]
        for number, above in enumerate(node.inputs):
            held = op.carried(number, output, *signals)
            if held is not None and (held.bent or torch.as_tensor(held.share).any()):
                yield above, held

    def reached(self, node: Node) -> frozenset[Node]:
        """The tensors with fresh randomness that a node is made of, whatever stands between."""

        def made(item: Node) -> frozenset[Node]:
            return frozenset().union(*(self._reached[other] for other in self._above(item))) or frozenset([item])

        return settled(node, self._reached, self._above, made)

    def _above(self, node: Node) -> list[Node]:
        held = self._holds(node)
        return held if held or node.op.holds_inputs else list(node.inputs[: node.op.reaches])

    def beyond(self, first: Node, second: Node) -> bool:
        """Whether two tensors have more in common than parts that both are sums of: functions of such a part."""
        if self.reached(first).isdisjoint(self.reached(second)):
            return False
        pairs = ((one, other) for one in self.ends(first) for other in self.ends(second))
        return any(
            one is not other and not self.reached(one).isdisjoint(self.reached(other)) for one, other in pairs
        ) or any(mine.bent and theirs.bent for _, mine, theirs in self.in_common(first, second))

    def in_common(self, first: Node, second: Node, forks: Set[Node] = frozenset()) -> list[Shared]:
        """Parts of both, with what either holds of it.

        Each node gets what it has in common beyond what comes to it through one above that is a part of both as well:
        the covariances of all add up to the whole, and so do the gradients that arrive at each, one by one.
        """
        mine, theirs = self.all_above(first, forks), self.all_above(second, forks)
        common = [node for node in mine if node in theirs]
        holders: dict[Node, list[tuple[Node, Carried]]] = {node: [] for node in common}
        for node in mine | theirs:
            for above, held in self.held(node, forks):
                if above in holders:
                    holders[above].append((node, held))
        found: list[Shared] = []
        for node, above in holders.items():
            within = [(holder, held) for holder, held in above if holder in holders]
            found += self._of_sum(first, second, node, forks)
            if len(within) == len(above) == 1:
                continue
            found += _pairs(node, *self._both(first, second, node, forks), 1.0)
            for holder, held in within:
                (inside,) = _carried({node: [self._whole(node)]}, held)[node]
                sides = self._both(first, second, holder, forks)
                one, other = ([_through(piece, inside) for piece in pieces] for pieces in sides)
                found += _pairs(node, one, other, -1.0)
        return found

    def _of_sum(self, first: Node, second: Node, node: Node, forks: Set[Node]) -> Iterator[Shared]:
        """What came together in a sum before stands in the state of that sum."""
        op = self._states.op(node)
        if isinstance(op, SharedResidual):
            mine, theirs = self._both(first, second, node, forks)
            sign = -float(op.skip * op.branch)
            for (one, other), part in zip(op.pieces, node.inputs[2:], strict=True):
                for left, right in ((one, other), (other, one)):
                    pieces = [_through(item, left) for item in mine], [_through(item, right) for item in theirs]
                    yield from _pairs(part, *pieces, sign)

    def _both(self, first: Node, second: Node, part: Node, forks: Set[Node]) -> tuple[list[Piece], list[Piece]]:
        one, other = (self.pieces(item, {part}, forks)[part] for item in (first, second))
        return one, other

    def _whole(self, node: Node) -> Piece:
        count = self._states.positions(node)
        ones = torch.ones(count, dtype=torch.float64)
        return Piece(ones, torch.arange(count), ones)

    def again(
        self, first: Node, second: Node, parts: Sequence[Node], pieces: Sequence[tuple[Piece, Piece]]
    ) -> list[tuple[Piece, Piece]]:
        """What both hold of the given parts in these states, in the order of pieces found in others."""
        left, found = self.in_common(first, second, set(parts)), []
        for part, (mine, other) in zip(parts, pieces, strict=True):
            places = (mine.index, other.index)
            same = (n for n, (node, *both) in enumerate(left) if node is part and _at(both, places))
            number = next(same, None)
            found.append(_nothing(mine, other) if number is None else left.pop(number)[1:])
        return found

    def all_above(self, node: Node, forks: Set[Node] = frozenset()) -> dict[Node, None]:
        """A node and all that it is a sum of, in order."""
        found, waiting = {node: None}, [node]
        while waiting:
            new = [above for above, _ in self.held(waiting.pop(), forks) if above not in found]
            found.update(dict.fromkeys(new))
            waiting += new
        return found

    def ends(self, node: Node) -> set[Node]:
        """The parts that a node is a sum of and that are no sums themselves."""
        return {item for item in self.all_above(node) if not self.held(item)}

    def pieces(self, target: Node, stops: Set[Node], forks: Set[Node] = frozenset()) -> Pieces:
        """Pieces of the stops in a node."""
        found: dict[Node, Pieces] = {}

        def above(node: Node) -> Sequence[tuple[Node, Carried]]:
            return () if node in stops else self.held(node, forks)

        def made(node: Node) -> Pieces:
            if node in stops:
                return {node: [self._whole(node)]}
            return functools.reduce(_merged, (_carried(found[item], held) for item, held in above(node)), {})

        return settled(target, found, lambda node: [item for item, _ in above(node)], made)


def _at(pieces: Sequence[Piece], places: Sequence[Tensor]) -> bool:
    return all(torch.equal(piece.index, index) for piece, index in zip(pieces, places, strict=True))


def _nothing(*pieces: Piece) -> tuple[Piece, ...]:
    return tuple(replace(piece, share=torch.zeros_like(piece.share), slope=piece.slope * 0.0) for piece in pieces)


def _pairs(part: Node, mine: list[Piece], theirs: list[Piece], sign: float) -> list[Shared]:
    signed = [replace(one, share=one.share * sign, slope=one.slope * sign) for one in mine]
    return [(part, one, other) for one in signed for other in theirs]


def _through(above: Piece, below: Piece) -> Piece:
    """A piece of a piece."""
    share, slope = (item[above.index] for item in (below.share, below.slope))
    return Piece(above.share * share, below.index[above.index], above.slope * slope, above.bent or below.bent)


def _carried(pieces: Pieces, held: Carried) -> Pieces:
    """What an op's output holds of the pieces of one input."""

    def made(item: Piece) -> Piece:
        slope = held.of(item.slope) * held.share * held.passed
        return Piece(held.of(item.share) * held.share, held.of(item.index), slope, item.bent or held.bent)

    return {node: [made(item) for item in found] for node, found in pieces.items()}


def _merged(first: Pieces, second: Pieces) -> Pieces:
    """Pieces of both; what has the same places adds up."""
    made = {node: list(found) for node, found in first.items()}
    for node, found in second.items():
        kept = made.setdefault(node, [])
        for piece in found:
            same = next((n for n, item in enumerate(kept) if torch.equal(item.index, piece.index)), None)
            if same is None:
                kept.append(piece)
            else:
                mine = kept[same]
                share, slope = mine.share + piece.share, mine.slope + piece.slope
                kept[same] = Piece(share, piece.index, slope, mine.bent or piece.bent)
    return made
