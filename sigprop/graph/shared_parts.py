"""What two tensors have in common although each counts as drawn afresh: the parts that both are sums of.

A sum counts as independent of what it was made of, which is right when a branch with weights of its own is added. Where
a tensor is added again later (an input injected at every cycle, experts that return their input), its occurrences add
in step: with `a = sum_k a_k x_k + ..` and `b = sum_k b_k x_k + ..`, per token, `E a b' = sum_k a_k b_k' Cov(x_k)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from sigprop.graph.graph import Node
from sigprop.theory.ops.base import Carried
from sigprop.theory.ops.shared_residual import Piece

Pieces = dict[Node, list[Piece]]


class SharedParts:
    """For each node the parts that it is a sum of, as bits of a number, and what it holds of them in some states."""

    def __init__(self, states: Any) -> None:
        self._states = states
        self._parts: dict[Node, int] = {}
        self._held: dict[Node, tuple[tuple[Node, Carried], ...]] = {}
        self._count = 0

    def take_from(self, node: Node, origin: Node, index: Tensor) -> None:
        """From now on a node counts as positions of another one that it was not made of: rows of a table."""
        self._states.graph.origins.setdefault(node, {})[origin] = index
        self.forget()

    def forget(self) -> None:
        """After states, or what counts as a part, have changed."""
        self._parts, self._held = {}, {}

    def of(self, node: Node) -> int:
        found = self._parts.get(node)
        if found is not None:
            return found
        found = 0
        for above, _ in self.held(node):
            found |= self.of(above)
        if not found:
            found = 1 << self._count
            self._count += 1
        self._parts[node] = found
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
            if held is not None and torch.as_tensor(held.share).any():
                yield above, held

    def in_common(self, first: Node, second: Node) -> list[tuple[Node, Piece, Piece]]:
        """Each part of both, with what either holds of it."""
        return self._between(first, second, self.forks(first, second))

    def _between(self, first: Node, second: Node, forks: set[Node]) -> list[tuple[Node, Piece, Piece]]:
        mine, theirs = self.pieces(first, forks), self.pieces(second, forks)
        return [(node, one, other) for node, held in mine.items() for one in held for other in theirs.get(node, [])]

    def again(
        self, first: Node, second: Node, parts: Sequence[Node], pieces: Sequence[tuple[Piece, Piece]]
    ) -> list[tuple[Piece, Piece]]:
        """What both hold of the given parts in these states, in the order of pieces found in others."""
        left, found = self._between(first, second, set(parts)), []
        for part, (mine, other) in zip(parts, pieces, strict=True):
            places = (mine.index, other.index)
            same = (n for n, (node, *both) in enumerate(left) if node is part and _at(both, places))
            number = next(same, None)
            found.append(_nothing(mine, other) if number is None else left.pop(number)[1:])
        return found

    def forks(self, first: Node, second: Node) -> set[Node]:
        """The last nodes that both are sums of; the parts themselves where one of those is made of another."""
        common = self.all_above(first) & self.all_above(second)
        found = self.all_above(first, common) & common | self.all_above(second, common) & common
        if any(other is not node and other in self.all_above(node) for node in found for other in found):
            return {node for node in common if not self.held(node)}
        return found

    def all_above(self, node: Node, stops: set[Node] | frozenset[Node] = frozenset()) -> set[Node]:
        """A node and all that it is a sum of, down to the stops."""
        found, waiting = {node}, [node]
        while waiting:
            item = waiting.pop()
            if item not in stops:
                new = [above for above, _ in self.held(item) if above not in found]
                found.update(new)
                waiting += new
        return found

    def ends(self, node: Node) -> set[Node]:
        """The parts that a node is a sum of and that are no sums themselves."""
        return {item for item in self.all_above(node) if not self.held(item)}

    def pieces(self, target: Node, forks: set[Node]) -> Pieces:
        """Pieces of the forks in a node."""
        found: dict[Node, Pieces] = {}
        waiting = [target]
        while waiting:
            node = waiting[-1]
            above = [] if node in forks else self.held(node, forks)
            missing = [item for item, _ in above if item not in found]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if node in forks:
                count = self._states.positions(node)
                found[node] = {node: [Piece(torch.ones(count, dtype=torch.float64), torch.arange(count))]}
            else:
                found[node] = {}
                for item, held in above:
                    found[node] = _merged(found[node], _carried(found[item], held))
        return found[target]


def _at(pieces: Sequence[Piece], places: Sequence[Tensor]) -> bool:
    return all(torch.equal(piece.index, index) for piece, index in zip(pieces, places, strict=True))


def _nothing(*pieces: Piece) -> tuple[Piece, ...]:
    return tuple(Piece(torch.zeros_like(piece.share), piece.index) for piece in pieces)


def _carried(pieces: Pieces, held: Carried) -> Pieces:
    """What an op's output holds of the pieces of one input."""
    return {
        node: [Piece(held.of(item.share) * held.share, held.of(item.index)) for item in found]
        for node, found in pieces.items()
    }


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
                kept[same] = Piece(kept[same].share + piece.share, piece.index)
    return made
