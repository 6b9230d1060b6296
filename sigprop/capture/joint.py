"""Several tensors as one: what they have in common stands in its covariance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sigprop.capture.record import Field
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node
from sigprop.graph.shared_weights import IN_STEP
from sigprop.theory.ops.cat_positions import CatPositions
from sigprop.theory.ops.shared_residual import Piece

ENTANGLED = "functions of one tensor, taken as independent"


@dataclass(frozen=True)
class Joint:
    """Sources that are drawn from the state of one node, each at its positions."""

    node: Node
    spans: dict[Field, slice]


def joined(states: Evaluation, nodes: Sequence[Node]) -> tuple[CatPositions, list[Node]]:
    """The op that puts positions of several tensors one after another, with its inputs; in doubt where they have more
    in common than parts: outputs of one weight, functions of one tensor."""
    parts, behind = states.shared_parts, states.weights_behind
    found: list[tuple[Node, tuple[int, Piece, int, Piece]]] = []
    doubt = ""
    for second, other in enumerate(nodes):
        for first, node in enumerate(nodes[:second]):
            if parts.of(node) & parts.of(other):
                found += [(part, (first, one, second, two)) for part, one, two in parts.in_common(node, other)]
            if behind.in_common(node, other):
                doubt = IN_STEP
            elif parts.beyond(node, other):
                doubt = doubt or ENTANGLED
    return CatPositions(len(nodes), tuple(pieces for _, pieces in found), doubt), [*nodes, *(part for part, _ in found)]


def tied(states: Evaluation, sources: dict[Field, list[Field]]) -> list[Field]:
    """Sources drawn as a whole that have something in common with another one of as many channels."""
    whole, reached = [item for item, drawn in sources.items() if drawn == [item]], states.shared_parts.reached
    return [
        item
        for item in whole
        if any(
            other.node is not item.node
            and other.layout.channels == item.layout.channels
            and not reached(item.node).isdisjoint(reached(other.node))
            for other in whole
        )
    ]
