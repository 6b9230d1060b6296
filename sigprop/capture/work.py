"""What following a trace costs: operations, counted from its nodes and not timed.

The unit is that of `simulate.work`, which counts what running the model costs, so that the two can be weighed against
each other and results do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from sigprop.capture.replayed_function import function_of
from sigprop.theory import Node

PER_NODE, PER_REPLICA = 5e7, 2e7
PER_PAIR = 5e3
"""For each pair of positions of a node: roots and products of its kernel."""
PER_DRAWN_PAIR = 6.0
"""For each pair of positions of a drawn tensor, channel and replica: its kernel, forward and backward."""


def operations_of(nodes: Iterable[Node]) -> float:
    """Of the forward and the backward pass over the nodes."""
    return sum(_of_node(node) + _of_draws(node) for node in nodes)


def _of_node(node: Node) -> float:
    return PER_NODE + PER_PAIR * node.positions**2


def _of_draws(node: Node) -> float:
    function = function_of(node)
    if function is None:
        return 0.0
    drawn = [function.target, *function.parts, *function.sites_between]
    pairs = sum(item.layout.positions**2 * item.layout.channels for item in drawn)
    return function.replicas * (PER_REPLICA + PER_DRAWN_PAIR * pairs)
