"""What a replay reads of a graph: the state of a node, the op that made it, the law of a weight."""

from __future__ import annotations

from sigprop.capture.record import Weight
from sigprop.capture.skeleton import Distribution
from sigprop.theory import Gradient, Node, Signal
from sigprop.theory.ops.base import Op


class Reading:
    """The graph as it was captured: the model's own laws. An `Evaluation` reads it under others."""

    changed = False

    def signal(self, node: Node) -> Signal:
        return node.signal

    def op(self, node: Node) -> Op | None:
        return node.op

    def law(self, weight: Weight) -> Distribution:
        return weight.distribution

    def gradient(self, node: Node) -> Gradient:
        """What reached a node that is an edge of a followed block; known while a gradient goes down."""
        raise LookupError("no gradient goes down a graph as it was captured")


AS_CAPTURED = Reading()
