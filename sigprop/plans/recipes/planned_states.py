"""A captured model under a plan: the same ops, other distributions, no new run of the model.

The graph is only read; each is an evaluation of it, so that any number of them may be made in any order.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sigprop.capture.record import Field
from sigprop.capture.rows import token_correlation
from sigprop.capture.skeleton import Distribution
from sigprop.graph.evaluate import Evaluation, uses_of
from sigprop.graph.graph import Node
from sigprop.plans.plan import Plan
from sigprop.results import Init
from sigprop.structure import Structure
from sigprop.theory.ops.residual import Residual


class PlannedStates(Evaluation):
    """States of a captured model under initializations that are set name by name; `run` recomputes them in order."""

    def __init__(self, structure: Structure):
        super().__init__(structure.traced.capture.graph, structure.traced.states)
        self.structure = structure
        self.weights = structure.traced.weights
        self.place = {node: index for index, node in enumerate(self.nodes)}
        self.uses = uses_of(self.graph)

    @classmethod
    def under(cls, structure: Structure, plan: Plan) -> PlannedStates:
        """All states under a plan, its junctions scaled as it says."""
        states = cls(structure)
        states.set_plan(plan)
        for place, (junction, spot) in enumerate(zip(structure.junctions, structure.sums, strict=True)):
            if not junction.parallel:
                row = plan.junctions[place] if plan.junctions else None
                states.scale_sum(spot.total, spot.skip, (1.0, 1.0) if row is None else (row.skip, row.branch))
        states.run()
        return states

    def set_init(self, name: str, init: Init, shape: tuple[int, ...]) -> None:
        """Set how a parameter is initialized; states change when they are run."""
        own = self.weights[name]
        self.set_law(own, distribution_of(init, own.distribution, shape, len(own.zero_rows)))

    def distribution_now(self, name: str) -> Distribution:
        """How a parameter is initialized now."""
        return self.law(self.weights[name])

    def set_plan(self, plan: Plan) -> None:
        """Set every parameter as a plan says."""
        for row in plan.parameters:
            if row.name in self.weights:
                self.set_init(row.name, row.init, row.shape)

    def scale_sum(self, total: Field, skip: Field, scales: tuple[float, float]) -> None:
        """Make a residual sum `scales[0] * skip + scales[1] * branch`, on top of the model's own factors."""
        node = total.node
        first, second = scales if node.inputs[0] is skip.node else scales[::-1]
        own = node.op if isinstance(node.op, Residual) else Residual()
        self.set_op(node, replace(own, skip=own.skip * first, branch=own.branch * second))

    def between(self, first: Node, last: Node) -> list[Node]:
        """The nodes of the graph from one to another, both included."""
        return self.nodes[self.place[first] : self.place[last] + 1]


def variance(node: Node, states: Evaluation) -> float:
    """Second moment about the overall mean, averaged over tokens."""
    signal = states.signal(node)
    overall = signal.mean.mean()
    return float((signal.kernel.diagonal - 2 * overall * signal.mean + overall**2).mean())


def correlation(field: Field, states: Evaluation) -> float:
    """Token correlation as in a profile: over pairs of one sequence."""
    return token_correlation(states.signal(field.node), field.layout)


def distribution_of(init: Init, own: Distribution, shape: tuple[int, ...], zero_rows: int = 0) -> Distribution:
    """The distribution of one entry, of all rows of a table of which some stay zero; a fused init counts as a mixture,
    which is an approximation."""
    if init.kind == "keep":
        return own if init.value == 1.0 else own.times(init.value)
    if zero_rows:
        return distribution_of(init, own, shape).with_zeros(zero_rows / shape[0])
    if init.kind == "constant":
        return Distribution.constant(init.value)
    if init.kind == "uniform":
        return Distribution.uniform(-math.sqrt(3) * init.std, math.sqrt(3) * init.std)
    if init.kind == "blocks":
        found = [distribution_of(part, own, shape) for part in init.parts]
        total = sum(init.sizes)
        second = sum(size * part.second_moment for size, part in zip(init.sizes, found, strict=True)) / total
        return Distribution.normal(0.0, math.sqrt(second))
    return Distribution.normal(0.0, init.std)
