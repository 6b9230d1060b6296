"""What following a trace costs: operations, counted from its nodes and not timed.

The unit is that of `simulate.work`, which counts what running the model costs, so that the two can be weighed against
each other and results do not depend on the machine.
"""

from __future__ import annotations

from sigprop.capture.replayed_function import function_of
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node

PER_NODE, PER_REPLICA = 5e7, 2e7
PER_PAIR = 5e3
"""For each pair of positions of a node: roots and products of its kernel."""
PER_DRAWN_PAIR = 6.0
"""For each pair of positions of a drawn tensor, channel and replica: its kernel, forward and backward."""


def operations_of(states: Evaluation) -> float:
    """Of the forward and the backward pass over all nodes."""
    return sum(PER_NODE + PER_PAIR * states.positions(node) ** 2 + _of_draws(node) for node in states.nodes)


def _of_draws(node: Node) -> float:
    function = function_of(node)
    if function is None:
        return 0.0
    drawn = [function.target, *function.parts, *function.sites_between]
    pairs = sum(item.layout.positions**2 * item.layout.channels for item in drawn)
    return function.replicas * (PER_REPLICA + PER_DRAWN_PAIR * pairs)
