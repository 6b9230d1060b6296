"""Evaluation: distributions of parameters and scales of sums go in, states of signals and gradients come out.

This is the only place where states are computed. The graph is only read. An evaluation holds ops with the distributions
that it is made under, the signals that follow from them, and all gradients. Several may be made of one graph, in any
order and in several threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sigprop.distributions import CENTRED, COPIED, STRUCTURED, UNKNOWN, Distribution
from sigprop.graph.graph import ONE_NUMBER, Entries, Graph, Node, Parents, Weight
from sigprop.graph.shared_parts import (
    IN_STEP,
    PathsAhead,
    Received,
    SharedParts,
    WeightsBehind,
    settled,
    uses_that_add_up,
)
from sigprop.graph.visits import Visits
from sigprop.graph.visits_back import GradientsOfVisits
from sigprop.theory import Dense, Evidence, Gradient, Signal, Status
from sigprop.theory.corrections import ACTIVE
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.ops.residual import LIMIT, of_visits, passes

ROUNDING = 1e-9
ADDED = "gradients through several uses of one weight are taken as independent"
ROUTED = "how many positions it sees was sampled once"
FEW_PICKED, FEW_ROUTED = 8, "which few positions it sees was sampled once"
"""Positions of so few the average gradient is not that of any, as behind a causal mask."""
DEPENDENT = {
    STRUCTURED: "taken as independent, which they are not",
    CENTRED: "taken as independent, and they sum to zero",
    COPIED: "those of another layer, and taken as independent",
    UNKNOWN: "not known",
}
"""Distributions whose entries are not independent: ops take them as such, so that the state is a guess and says so."""
SMALL_BIAS = 0.01
"""Of the mean square that a bias is added to: what copies of so small a one have in common does not count beside what
independent weights make. Layers copied in `nn.Transformer` keep them when all matrices are initialized anew."""


@dataclass
class Start:
    """Where the gradient starts: at nodes, at weights that a loss takes directly, at sites that a replay passes.

    `nodes`: of the loss alone, behind those of the graph: outputs that it compares, one after another."""

    seeds: list[tuple[Node, Gradient]] = field(default_factory=list)
    weights: dict[Weight, float] = field(default_factory=dict)
    passed: dict[Any, Gradient] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def noise(cls, node: Node, states: Evaluation) -> Start:
        """Unit white noise: what a model without a loss is differentiated against."""
        return cls([(node, Gradient(Dense(torch.eye(states.positions(node), dtype=torch.float64))))])

    def note(self, status: Status, reason: str) -> Start:
        """The same gradients with the evidence worsened."""
        seeds = [(node, gradient.note(status, reason)) for node, gradient in self.seeds]
        passed = {site: gradient.note(status, reason) for site, gradient in self.passed.items()}
        return replace(self, seeds=seeds, passed=passed, evidence=self.evidence.join(Evidence(status, reason)))


class Evaluation:
    """States of a graph under given distributions; `run` computes signals, `backward` sends a gradient down.

    Distributions that are not set are those that the graph refers to. A signal that was not run is that of the
    evaluation `base` where there is one, else it is computed when it is asked for. `dtype` is that of the kernels that
    are kept (ops compute in float64). After `backward`, `gradients` holds what reached each node (unless it was let
    go), `parameters` what the ops without weights of their own say of theirs, and how it is known, `passed` what
    replays sent through sites without their nodes, `energy` the expected squared norm of every parameter's gradient.
    """

    def __init__(
        self,
        graph: Graph,
        base: Evaluation | None = None,
        *,
        dtype: torch.dtype = torch.float64,
    ):
        self.graph, self.base, self.dtype = graph, base, dtype
        self.changed, self.asks_weights = False, True
        self._given: dict[Node, Op] = {} if base is None else dict(base._given)
        self._ops: dict[Node, Op] = {}
        self._signals: dict[Node, Signal] = {}
        self._laws: dict[Weight, Distribution] = {} if base is None else dict(base._laws)
        self._derived: dict[Weight, tuple[Distribution, Parents]] = {}
        self.gradients: dict[Node, Gradient] = {}
        self.parameters: dict[Node, tuple[list[ParameterState], Evidence]] = {}
        self.passed: dict[Any, Gradient] = {}
        self.energy: dict[str, float] = {}
        self.evidence: dict[str, Evidence] = {}
        self._uses: dict[Entries, list[Received]] = {}
        self.with_loss: list[Node] = []

    @property
    def nodes(self) -> list[Node]:
        return self.graph.nodes

    @cached_property
    def shared_parts(self) -> SharedParts:
        """What tensors have in common, in these states."""
        return SharedParts(self)

    @cached_property
    def visits(self) -> Visits:
        return Visits(self)

    @cached_property
    def weights_behind(self) -> WeightsBehind:
        return WeightsBehind(self.shared_parts)

    @cached_property
    def visits_back(self) -> GradientsOfVisits:
        """What gradients of these visits have in common, in the last backward pass."""
        return GradientsOfVisits(self)

    # -- distributions in

    def law(self, weight: Weight) -> Distribution:
        """How the entries of a weight are drawn: as set, or as follows from what it is made of."""
        return self._law_and_parents(weight)[0]

    def _law_and_parents(self, weight: Weight) -> tuple[Distribution, Parents]:
        if not self._laws or weight.derive is None:
            return self._laws.get(weight, weight.distribution), weight.parents
        if weight not in self._derived:
            same = all(self.law(parent) is parent.distribution for parent, *_ in weight.parents)
            self._derived[weight] = (weight.distribution, weight.parents) if same else weight.derive(self)
        return self._derived[weight]

    def set_law(self, weight: Weight, law: Distribution) -> None:
        self._laws[weight], self.changed = law, True
        self._derived = {}

    def set_op(self, node: Node, op: Op) -> None:
        self._given[node], self.changed = op, True

    # -- states out

    def signal(self, node: Node) -> Signal:
        found = self._signals.get(node)
        if found is None:
            if self.base is not None:
                return self.base.signal(node)
            self._run_with_inputs(node)
            found = self._signals[node]
        return found if self.dtype == torch.float64 else _kept_as(found, torch.float64)

    def signals(self, nodes: Iterable[Node]) -> dict[Node, Signal]:
        return {node: self.signal(node) for node in nodes}

    def _run_with_inputs(self, node: Node) -> None:
        """With what it is made of: chains may be long."""
        waiting = [node]
        while waiting:
            missing = [item for item in waiting[-1].inputs if item not in self._signals]
            if missing:
                waiting += missing
            else:
                self.run([waiting.pop()])

    def positions(self, node: Node) -> int:
        found = self._signals.get(node)
        return len((self.signal(node) if found is None else found).mean)

    def sizes(self) -> list[int]:
        """The number of positions of every node."""
        return list(map(self.positions, self.nodes))

    def op(self, node: Node) -> Op:
        """The op of a node as it was run, or, where it was not, as it is bound to these states."""
        if node not in self._ops:
            own = node.op if self.base is None else self.base.op(node)
            self._ops[node] = self._bound(node, self._given.get(node, own))
        return self._ops[node]

    def kurtosis(self, node: Node) -> Tensor | None:
        """That of a tensor's channels between its positions (see `corrections.kurtosis`)."""
        if "pairs" not in ACTIVE.get():
            return None

        found: dict[Node, Tensor | None] = {}

        def above(item: Node) -> tuple[Node, ...]:
            return item.inputs if item.op.keeps_kurtosis else ()

        def made(item: Node) -> Tensor | None:
            signals = [self.signal(other) for other in item.inputs]
            return self.op(item).kurtosis(self.signal(item), signals, [found[other] for other in above(item)])

        return settled(node, found, above, made)

    def run(self, nodes: Iterable[Node] | None = None) -> None:
        """Compute the signals of the given nodes, all of them by default, in order."""
        for node in self.nodes if nodes is None else nodes:
            self.run_one(node)

    def run_one(self, node: Node) -> Signal:
        """Compute the signal of a node from those of its inputs."""
        if node in self._signals:
            self.shared_parts.forget()
            self.__dict__.pop("visits", None)
        op = self._ops[node] = self._bound(node, self._given.get(node, node.op))
        signal = self._noted(node, op, op.forward(*map(self.signal, node.inputs)))
        self._signals[node] = signal if self.dtype == torch.float64 else _kept_as(signal, self.dtype)
        return signal

    def _bound(self, node: Node, op: Op) -> Op:
        """In these states, and under their distributions."""
        op = self._under_laws(node, op)
        return op.bound(self, node) if op.looks_beyond else op

    def unbound(self, node: Node) -> Op:
        """The op of a node under these distributions, in no states: on any number of positions."""
        own = node.op if self.base is None else self.base.unbound(node)
        return self._under_laws(node, self._given.get(node, own))

    def _under_laws(self, node: Node, op: Op) -> Op:
        """It is recorded with the distributions that the graph refers to."""
        for key, (weight, _) in node.weights.items() if self._laws else ():
            law = self.law(weight)
            op = op if law is weight.distribution else op.with_law(key, law)
        return op

    def _noted(self, node: Node, op: Op, signal: Signal) -> Signal:
        """The state with what is not followed."""
        for key, (weight, _) in node.weights.items():
            law = self.law(weight)
            if law.kind not in DEPENDENT or (law.kind == CENTRED and getattr(op, "centred", False)):
                continue
            small = key == "bias" and law.second_moment < SMALL_BIAS * float(signal.kernel.level)
            if law.kind != COPIED or not small:
                name = next((name for name, _ in weight.roots), "a weight")
                signal = signal.note(Status.ASSUMED, f"entries of {name} are {DEPENDENT[law.kind]}")
        for doubt in node.doubts:
            said = doubt if isinstance(doubt, str) else doubt(self, signal)
            signal = signal.note(Status.ASSUMED, said) if said else signal
        return signal

    def backward(
        self,
        start: Start,
        done: Callable[[Node, Gradient], None] | None = None,
        until: Node | None = None,
        weights: bool = True,
    ) -> None:
        """Send the gradient from its start to every node it depends on, or `until` one has all of its own; through a
        guess it is a guess.

        With `done`, which sees each node once, gradients are let go as soon as nothing needs them. Without `weights`,
        nothing is said of theirs, and ops that draw do so until what they send on is known.
        """
        self.asks_weights = weights
        self.gradients, self.passed, self.energy, self.evidence, self._uses = {}, dict(start.passed), {}, {}, {}
        self.parameters, self.with_loss = {}, [*self.nodes, *start.nodes]
        paths = PathsAhead(self.with_loss)
        self.__dict__.pop("visits_back", None)
        edges = set() if done is None else {edge for node in self.nodes for edge in node.op.gradients_read}
        for weight, amount in start.weights.items():
            self._book(weight, amount, start.evidence)
        for node, gradient in start.seeds:
            self._receive(node, gradient)
        for node in reversed(self.with_loss):
            if node is until:
                return
            gradient = self.gradients.get(node)
            if gradient is None:
                continue
            if paths.reused:
                gradient = self._together(node, gradient, paths.energies(node), paths.add_up(node))
            gradient = self.gradients[node] = possible(gradient)
            sent = self._through(node, gradient)
            for source, arrived in sent if paths.reused else ():
                paths.arrives(source, node, arrived)
            if done is not None:
                picked = self.positions(node) < min(self.graph.routed.get(node, (0, 1.0))[0], FEW_PICKED)
                done(node, gradient.note(Status.ASSUMED, FEW_ROUTED) if picked else gradient)
                if node not in edges and not paths.reused:
                    del self.gradients[node]
        self._book_together()

    def _together(self, node: Node, gradient: Gradient, energies: list[float], adds_up: bool) -> Gradient:
        """With what gradients that came through several uses of one weight have in common."""
        more = self.visits_back.among(node)
        if more is None:
            return gradient.note(Status.ASSUMED, ADDED) if adds_up else gradient
        if not more.any():
            return gradient
        made = replace(gradient, kernel=gradient.kernel.like(gradient.kernel.values + more))
        width = self.signal(node).width
        passed = math.sqrt(made.evidence.doubt * width) + passes(made.energy(), *energies)
        return of_visits(made, passed, width)

    def _book_together(self) -> None:
        """What weights receive because gradients of their uses have something in common."""
        for entries in list(uses_that_add_up(self.with_loss, self._uses)):
            nodes = [node for node, _ in self._uses[entries]]
            pairs = [(first, second) for place, second in enumerate(nodes) for first in nodes[:place]]
            found = [self.visits_back.of_weights(*pair) for pair in pairs]
            amounts = [(node, more) for (_, node), more in zip(pairs, found, strict=True) if more is not None]
            whole = len(amounts) == len(found)
            if not whole and not nodes[0].op.multiplies:
                continue
            known = Evidence(Status.ASYMPTOTIC, LIMIT) if whole else Evidence(Status.ASSUMED, IN_STEP)
            for node, more in amounts if whole else ():
                for key, (weight, count) in node.weights.items():
                    if entries in weight.entries:
                        self._book(weight, more[key] * count, known)
            self.evidence[entries[0]] = self.evidence[entries[0]].join(known)

    def gradient(self, node: Node) -> Gradient:
        return self.gradients[node]

    def _receive(self, node: Node, gradient: Gradient) -> None:
        before = self.gradients.get(node)
        self.gradients[node] = gradient if before is None else before.meets(gradient, self.signal(node))

    def _through(self, node: Node, gradient: Gradient) -> list[tuple[Node, Gradient]]:
        """What the op of a node sends to its inputs; its weights have theirs."""
        op, output = self.op(node), self.signal(node)
        signals = [self.signal(source) for source in node.inputs]
        parameters = op.parameters(gradient, *signals) if self.asks_weights else []
        made = output.evidence
        found = zip(node.inputs, op.backward(gradient, output, *signals), strict=True)
        sent = [
            (source, arrived if made.status <= arrived.evidence.status else arrived.note(made.status, made.reason))
            for source, arrived in found
            if arrived is not None
        ]
        for source, arrived in sent:
            self._receive(source, arrived)
        received, sizes, known = op.received, node.weights, [gradient.evidence]
        if received is not None:
            self._book_received(received, gradient.evidence.join(op.gradient_evidence(gradient)), made.join(*known))
            sizes = {str(number): (weight, math.prod(weight.shape)) for number, weight in enumerate(received.weights)}
        if parameters:
            known.append(op.parameter_evidence(gradient, *signals))
        whole, more = self.graph.routed.get(node, (0, 1.0))
        if more != 1.0 or (whole and self.positions(node) < whole):
            known.append(Evidence(Status.ASSUMED, ROUTED))
        evidence = made.join(*known) if parameters or node.parameters else made
        if node.parameters:
            self.parameters[node] = parameters, evidence
        for state in parameters:
            if state.name in sizes:
                weight, entries = sizes[state.name]
                amount = float(state.grad_second_moment) * entries * more
                rows = weight.knows_rows and state.name == "weight" and received is None
                along = op.along_rows(gradient, *signals) if rows else None
                own = evidence if received is None else evidence.join(op.weight_evidence(gradient, weight))
                self._book(weight, amount, own, along)
                if received is None and (op.multiplies or node in self.graph.lookups):
                    for key in weight.entries:
                        self._uses.setdefault(key, []).append((node, amount))
        return sent

    def _book_received(self, received: Any, known: Evidence, evidence: Evidence) -> None:
        """What draws sent elsewhere than to the inputs of their op."""
        for source, change in received.corrections.items():
            weight, entries = source.weights["weight"]
            self._book(weight, change * entries, evidence)
        for site, kernel in received.passed.items():
            if kernel.dim():
                made, before = Gradient(Dense(kernel), evidence=known), self.passed.get(site)
                self.passed[site] = made if before is None else before + made

    def _book(self, weight: Weight, amount: float, evidence: Evidence, along: float | None = None) -> None:
        """Note what a weight receives, and who it is made of; `along`: which part of it is along its rows."""
        if not self.asks_weights:
            return
        parents = self._law_and_parents(weight)[1]
        if parents and math.prod(weight.shape) == 1:
            evidence = evidence.join(Evidence(Status.ASSUMED, ONE_NUMBER))
        for name, share in self._roots(weight, along):
            self.energy[name] = self.energy.get(name, 0.0) + amount * share
            before = self.evidence.get(name)
            self.evidence[name] = evidence if before is None else before.join(evidence)

    def _roots(self, weight: Weight, along: float | None) -> list[tuple[str, float]]:
        """Names of the parameters behind, each with its share of a gradient, so much of which is along the rows; of one
        that points anywhere, one part in as many as a row has entries."""
        if weight.name:
            return [(weight.name, 1.0)]
        usual, found = 1.0 / max(math.prod(weight.shape[1:]), 1), []
        for parent, share, own in self._law_and_parents(weight)[1]:
            mixed = share
            if along is not None and usual < 1.0:
                mixed = max(share - usual * own, 0.0) * (1.0 - along) / (1.0 - usual) + own * along
            inside = along if parent.knows_rows and parent.shape == weight.shape else None
            found += [(name, mixed * inner) for name, inner in self._roots(parent, inside)]
        return found


def evaluate(
    graph: Graph,
    laws: Mapping[Weight, Distribution] | None = None,
    ops: Mapping[Node, Op] | None = None,
    *,
    dtype: torch.dtype = torch.float64,
) -> Evaluation:
    """The signals of a graph under its own distributions, or others, with some of its ops replaced (scaled sums)."""
    states = Evaluation(graph, dtype=dtype)
    for weight, law in (laws or {}).items():
        states.set_law(weight, law)
    for node, op in (ops or {}).items():
        states.set_op(node, op)
    states.run()
    return states


def possible(gradient: Gradient) -> Gradient:
    """All that arrives is there: no mean square is negative. Where terms that lower it add up to more than there is,
    the gradient is a guess."""
    level = gradient.kernel.diagonal
    if bool((level >= 0.0).all()) or not bool((level < -ROUNDING * level.abs().max()).any()):
        return gradient
    kernel = gradient.kernel.add_diagonal(level.clamp_min(0.0) - level)
    return replace(gradient, kernel=kernel).note(Status.ASSUMED, "a gradient with less than no energy")


def uses_of(graph: Graph) -> Mapping[str, list[Node]]:
    """For each parameter the nodes that use it."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for weight, _ in node.weights.values():
            for name, _ in weight.roots:
                found.setdefault(name, []).append(node)
    return found


def _kept_as(signal: Signal, dtype: torch.dtype) -> Signal:
    return replace(signal, kernel=signal.kernel.like(signal.kernel.values.to(dtype)))
