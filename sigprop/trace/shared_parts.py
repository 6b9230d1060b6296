"""What two tensors have in common although each counts as drawn afresh: the parts that both are sums of.

A sum counts as independent of what it was made of, which is right when a branch with weights of its own is added. Where
a tensor is added again later (an input injected at every cycle, experts that return their input), its occurrences add
in step: with `a = sum_k a_k x_k + ..` and `b = sum_k b_k x_k + ..`, per token, `E a b' = sum_k a_k b_k' Cov(x_k)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sigprop.theory import Node
from sigprop.theory.ops.base import Carried
from sigprop.theory.ops.residual import Residual
from sigprop.theory.ops.shared_residual import Piece, SharedResidual

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

Pieces = dict[Node, list[Piece]]


def added(capture: Capture, op: Residual, first: Node, second: Node) -> Node:
    """The sum of two tensors, with what they have in common."""
    both = capture.shared_parts.of(first) & capture.shared_parts.of(second)
    if not both or capture.preview:
        return capture.apply(op, first, second)
    found = _pieces(capture, _forks(first, second), (first, second))
    pairs = [
        (node, (mine, other))
        for node, pieces in found[first].items()
        for mine in pieces
        for other in found[second].get(node, [])
    ]
    made = SharedResidual(op.skip, op.branch, tuple(pair for _, pair in pairs))
    return capture.apply(made, first, second, *(node for node, _ in pairs))


class SharedParts:
    """For each node the parts that it is a sum of, as bits of a number."""

    def __init__(self) -> None:
        self._parts: dict[Node, int] = {}
        self._count = 0

    def of(self, node: Node) -> int:
        found = self._parts.get(node)
        if found is not None:
            return found
        if _holds(node):
            found = 0
            for above in node.inputs:
                found |= self.of(above)
        else:
            found = 1 << self._count
            self._count += 1
        self._parts[node] = found
        return found


def _forks(first: Node, second: Node) -> set[Node]:
    """The last nodes that both are sums of; the parts themselves where one of those is made of another."""
    mine, theirs = _above(first), _above(second)
    common = mine & theirs
    found = _above(first, common) & common | _above(second, common) & common
    if any(other is not node and other in _above(node) for node in found for other in found):
        return {node for node in common if not _holds(node)}
    return found


def _above(node: Node, stops: set[Node] | frozenset[Node] = frozenset()) -> set[Node]:
    """A node and all that it is a sum of, down to the stops."""
    found, waiting = {node}, [node]
    while waiting:
        item = waiting.pop()
        if item not in stops and _holds(item):
            new = [above for above in item.inputs if above not in found]
            found.update(new)
            waiting += new
    return found


def _pieces(capture: Capture, forks: set[Node], targets: tuple[Node, Node]) -> dict[Node, Pieces]:
    """Pieces of the forks in every node that has one, up to the targets."""
    found: dict[Node, Pieces] = {}
    for node in capture.tape.nodes:
        if node in forks:
            count = len(node.signal.mean)
            found[node] = {node: [Piece(torch.ones(count, dtype=torch.float64), torch.arange(count))]}
        elif _holds(node) and any(above in found for above in node.inputs):
            found[node] = _kept(node, [found.get(above, {}) for above in node.inputs])
        if all(target in found for target in targets):
            break
    return found


def _holds(node: Node) -> bool:
    return node.op is not None and node.op.holds_inputs


def _kept(node: Node, above: list[Pieces]) -> Pieces:
    assert node.op is not None
    signals, made = [item.signal for item in node.inputs], {}
    for number, pieces in enumerate(above):
        held = node.op.carried(number, node.signal, *signals) if pieces else None
        if held is not None:
            made = _merged(made, _held(pieces, held))
    return made


def _held(pieces: Pieces, held: Carried) -> Pieces:
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
