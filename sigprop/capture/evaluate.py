"""Evaluation: laws of the parameters and scales of residual sums go in, states of signals and gradients come out.

The graph of a capture is only read. An evaluation holds what differs from it: ops with other laws, the signals that
follow from them, and all gradients. Several may be made of one graph, in any order and in several threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sigprop.capture.capture import Capture
from sigprop.capture.few_products import REASON, is_bent_sum
from sigprop.capture.reading import Reading
from sigprop.capture.record import ONE_NUMBER, Field, Weight
from sigprop.capture.shared_weights import IN_STEP, Entries, Received, entries_of, uses_in_step
from sigprop.capture.skeleton import Distribution
from sigprop.theory import Dense, Evidence, Gradient, Node, Signal, Status
from sigprop.theory.ops.base import Op, ReceivedByDraws

ROUNDING = 1e-9


@dataclass
class Start:
    """Where the gradient starts: at nodes, at weights that a loss takes directly, at sites that a replay passes."""

    seeds: list[tuple[Node, Gradient]] = field(default_factory=list)
    weights: dict[Weight, float] = field(default_factory=dict)
    passed: dict[Field, Gradient] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)

    def note(self, status: Status, reason: str) -> Start:
        """The same gradients with the evidence worsened."""
        seeds = [(node, gradient.note(status, reason)) for node, gradient in self.seeds]
        passed = {site: gradient.note(status, reason) for site, gradient in self.passed.items()}
        return Start(seeds, self.weights, passed, self.evidence.join(Evidence(status, reason)))


class Evaluation(Reading):
    """States under given laws; `run` recomputes signals, `backward` sends a gradient down.

    After `backward`, `gradients` holds what reached each node (unless it was let go), `passed` what replays sent
    through sites without their nodes, `energy` the expected squared norm of every parameter's gradient.
    """

    def __init__(self, capture: Capture):
        self.capture = capture
        self.nodes: list[Node] = capture.tape.nodes
        self.changed = False
        self._ops: dict[Node, Op] = {}
        self._signals: dict[Node, Signal] = {}
        self._laws: dict[Weight, Distribution] = {}
        self.gradients: dict[Node, Gradient] = {}
        self.passed: dict[Field, Gradient] = {}
        self.energy: dict[str, float] = {}
        self.evidence: dict[str, Evidence] = {}
        self._uses: dict[Entries, list[Received]] = {}

    # -- what replays read

    def signal(self, node: Node) -> Signal:
        found = self._signals.get(node)
        return node.signal if found is None else found

    def op(self, node: Node) -> Op | None:
        op = self._ops.get(node, node.op)
        bound = None if op is None else op.bound(self)
        if bound is not None and bound is not op:
            self._ops[node] = bound
        return bound

    def law(self, weight: Weight) -> Distribution:
        return self._laws.get(weight, weight.distribution)

    def gradient(self, node: Node) -> Gradient:
        return self.gradients[node]

    # -- laws in

    def set_law(self, weight: Weight, law: Distribution) -> None:
        self._laws[weight], self.changed = law, True

    def set_op(self, node: Node, op: Op) -> None:
        self._ops[node], self.changed = op, True

    def use(self, node: Node, key: str, weight: Weight, law: Distribution) -> None:
        """Let an op take the law of one of its parameters."""
        self.set_law(weight, law)
        op = self.op(node)
        assert op is not None
        self.set_op(node, op.with_law(key, law))

    # -- states out

    def run(self, nodes: Iterable[Node] | None = None) -> None:
        """Recompute the signals of the given nodes, all of them by default, in order."""
        for node in self.nodes if nodes is None else nodes:
            op = self.op(node)
            if op is not None:
                signal, doubt = op.forward(*map(self.signal, node.inputs)), self.capture.doubts.get(node)
                self._signals[node] = signal if doubt is None else signal.note(Status.ASSUMED, doubt)

    def backward(self, start: Start, done: Callable[[Node, Gradient], None] | None = None) -> None:
        """Send the gradient from its start to every node it depends on; through a guess it is a guess.

        With `done`, which sees each node once, gradients are let go as soon as nothing needs them.
        """
        self.gradients, self.passed, self.energy, self.evidence, self._uses = {}, dict(start.passed), {}, {}, {}
        for weight, amount in start.weights.items():
            self._book(weight, amount, start.evidence)
        for node, gradient in start.seeds:
            self._receive(node, gradient)
        for node in reversed(self.nodes):
            gradient = self.gradients.get(node)
            if gradient is None:
                continue
            self._through(node, gradient)
            if done is not None:
                done(node, gradient)
                if node not in self.capture.edges:
                    del self.gradients[node]
        for name, *_ in uses_in_step(self.nodes, self.capture.weights_behind, self._uses):
            self.evidence[name] = self.evidence[name].join(Evidence(Status.ASSUMED, IN_STEP))

    def _receive(self, node: Node, gradient: Gradient | None) -> None:
        if gradient is not None:
            before = self.gradients.get(node)
            made = gradient if before is None else before.meets(gradient, self.signal(node))
            self.gradients[node] = made if node.op is not None and node.op.completes_gradients else possible(made)

    def _through(self, node: Node, gradient: Gradient) -> None:
        op = self.op(node)
        if op is None:
            return
        if is_bent_sum(node, gradient, self.signal(node)):
            gradient = gradient.note(Status.ASSUMED, REASON)
        signals = [self.signal(source) for source in node.inputs]
        parameters, made = op.parameters(gradient, *signals), self.signal(node).evidence
        for source, arrived in zip(node.inputs, op.backward(gradient, self.signal(node), *signals), strict=True):
            if arrived is not None and made.status is Status.ASSUMED:
                arrived = arrived.note(Status.ASSUMED, made.reason)
            self._receive(source, arrived)
        evidence = made.join(gradient.evidence)
        received, sizes = op.received, self.capture.bindings.get(node, {})
        if received is not None:
            self._book_received(received, gradient.evidence.join(op.gradient_evidence(gradient)), evidence)
            sizes = {str(number): (weight, math.prod(weight.shape)) for number, weight in enumerate(received.weights)}
        evidence = evidence.join(op.parameter_evidence(gradient, *signals))
        for state in parameters:
            if state.name in sizes:
                weight, entries = sizes[state.name]
                amount = float(state.grad_second_moment) * entries
                self._book(weight, amount, evidence)
                if received is None and op.multiplies:
                    for key in entries_of(weight):
                        self._uses.setdefault(key, []).append((node, amount))

    def _book_received(self, received: ReceivedByDraws, known: Evidence, evidence: Evidence) -> None:
        """What draws sent elsewhere than to the inputs of their op."""
        for source, change in received.corrections.items():
            weight, entries = self.capture.bindings[source]["weight"]
            self._book(weight, change * entries, evidence)
        for site, kernel in received.passed.items():
            if kernel.dim():
                made, before = Gradient(Dense(kernel), evidence=known), self.passed.get(site)
                self.passed[site] = made if before is None else before + made

    def _book(self, weight: Weight, amount: float, evidence: Evidence) -> None:
        if weight.parents and math.prod(weight.shape) == 1:
            evidence = evidence.join(Evidence(Status.ASSUMED, ONE_NUMBER))
        for name, share in weight.roots():
            self.energy[name] = self.energy.get(name, 0.0) + amount * share
            self.evidence[name] = self.evidence.get(name, Evidence()).join(evidence)


def possible(gradient: Gradient) -> Gradient:
    """No mean square is negative: where terms that lower it add up to more than there is, the gradient is a guess."""
    level = gradient.kernel.diagonal
    if not bool((level < -ROUNDING * level.abs().max()).any()):
        return gradient
    kernel = gradient.kernel.add_diagonal(level.clamp_min(0.0) - level)
    return replace(gradient, kernel=kernel).note(Status.ASSUMED, "a gradient with less than no energy")


def uses_of(capture: Capture) -> Mapping[str, list[tuple[Node, str, Weight]]]:
    """For each parameter the nodes that use it, under which key of their op, as which weight."""
    found: dict[str, list[tuple[Node, str, Weight]]] = {}
    for node, bound in capture.bindings.items():
        for key, (weight, _) in bound.items():
            for name, _ in weight.roots():
                found.setdefault(name, []).append((node, key, weight))
    return found
