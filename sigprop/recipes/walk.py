"""Walking a trace again with other initializations: the same ops, other variances, no new run of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sigprop.results import Init, Plan
from sigprop.structure import Structure
from sigprop.structure.branch_outputs import shift_of
from sigprop.theory import Node
from sigprop.theory.ops.residual import Residual
from sigprop.trace.record import Field, Weight
from sigprop.trace.sampled import Sampled
from sigprop.trace.skeleton import Distribution


class Walk:
    """States of a traced model under draws that are set name by name; `run` recomputes them in order."""

    def __init__(self, structure: Structure):
        self.structure = structure
        capture = structure.trace.capture
        self.nodes: list[Node] = capture.tape.nodes
        self.place = {node: index for index, node in enumerate(self.nodes)}
        self.own = {weight.name: weight.distribution for weight in capture.parameters.values()}
        self.uses: dict[str, list[tuple[Node, str, Weight]]] = {}
        for node, bound in capture.bindings.items():
            for key, (weight, _) in bound.items():
                for name, _ in weight.roots():
                    self.uses.setdefault(name, []).append((node, key, weight))

    def draw(self, name: str, init: Init, shape: tuple[int, ...]) -> None:
        """Set how a parameter is drawn; states follow when they are run."""
        law = distribution_of(init, self.own[name], shape)
        parameter = self.structure.trace.capture.parameters[name]
        parameter.distribution = law
        for node, key, weight in self.uses.get(name, []):
            shift = shift_of(weight)
            if shift is not None:
                weight.distribution = _shifted(law, shift)
                node.op = None if node.op is None else node.op.with_law(key, weight.distribution)

    def law(self, name: str) -> Distribution:
        """How a parameter is drawn now."""
        return self.structure.trace.capture.parameters[name].distribution

    def draw_all(self, plan: Plan) -> None:
        """Set every parameter as a plan says."""
        for row in plan.parameters:
            if row.name in self.own:
                self.draw(row.name, row.init, row.shape)

    def scale_sum(self, total: Field, skip: Field, scales: tuple[float, float]) -> None:
        """Make a residual sum `scales[0] * skip + scales[1] * branch` in the walk."""
        node = total.node
        first = node.inputs[0] is skip.node
        node.op = Residual(*(scales if first else scales[::-1]))

    def run(self, nodes: Iterable[Node] | None = None) -> None:
        """Recompute the states of the given nodes, all of them by default, in order."""
        for node in self.nodes if nodes is None else nodes:
            if node.op is not None:
                if isinstance(node.op, Sampled):
                    node.op._reverse = None
                node.signal = node.op.forward(*(source.signal for source in node.inputs))

    def between(self, first: Node, last: Node) -> list[Node]:
        """The nodes of the tape from one to another, both included."""
        return self.nodes[self.place[first] : self.place[last] + 1]


def variance(node: Node) -> float:
    """Second moment about the overall mean, averaged over tokens."""
    signal = node.signal
    overall = signal.mean.mean()
    return float((signal.kernel.diagonal - 2 * overall * signal.mean + overall**2).mean())


def correlation(node: Node) -> float:
    """Average token correlation."""
    return float(node.signal.summary()[2])


def distribution_of(init: Init, own: Distribution, shape: tuple[int, ...]) -> Distribution:
    """The law of one entry; a fused draw counts as a mixture, which is an approximation."""
    if init.kind == "keep":
        return Distribution(own.quantiles * init.value, own.mean * init.value, own.variance * init.value**2)
    if init.kind == "constant":
        return Distribution.constant(init.value)
    if init.kind == "uniform":
        return Distribution.uniform(-math.sqrt(3) * init.std, math.sqrt(3) * init.std)
    if init.kind == "blocks":
        laws = [distribution_of(part, own, shape) for part in init.parts]
        total = sum(init.sizes)
        second = sum(size * law.second_moment for size, law in zip(init.sizes, laws, strict=True)) / total
        return Distribution.normal(0.0, math.sqrt(second))
    return Distribution.normal(0.0, init.std)


def _shifted(law: Distribution, shift: float) -> Distribution:
    return Distribution(law.quantiles + shift, law.mean + shift, law.variance) if shift else law
