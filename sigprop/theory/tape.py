"""The engine: ops applied to states going forward, and the same ops read in reverse for the gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.states import Gradient, Signal


@dataclass(eq=False)
class Node:
    """One tensor of the network: where it came from, its state, and the gradient that reached it."""

    signal: Signal
    op: Op | None = None
    inputs: tuple[Node, ...] = ()
    name: str = ""
    depth: int = 0
    parameter_prefix: str = ""
    gradient: Gradient | None = None
    parameters: list[ParameterState] = field(default_factory=list)

    @property
    def positions(self) -> int:
        return len(self.signal.mean)

    def receive(self, gradient: Gradient | None) -> None:
        if gradient is not None:
            self.gradient = gradient if self.gradient is None else self.gradient.meets(gradient, self.signal)


class SingleNode(Node):
    """A node that keeps its kernel in float32: half the memory; ops still compute in float64."""

    @property
    def signal(self) -> Signal:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _kept_as(self._kept, torch.float64)

    @signal.setter
    def signal(self, signal: Signal) -> None:
        self._kept = _kept_as(signal, torch.float32)

    @property
    def positions(self) -> int:
        return len(self._kept.mean)


def _kept_as(signal: Signal, dtype: torch.dtype) -> Signal:
    return replace(signal, kernel=signal.kernel.like(signal.kernel.values.to(dtype)))


class Tape:
    """Nodes in the order they were made. `backward` visits them in reverse, each once."""

    def __init__(self, kind: type[Node] = Node) -> None:
        self.nodes: list[Node] = []
        self._kind = kind

    def source(self, signal: Signal, name: str = "", depth: int = 0) -> Node:
        """A tensor that no op of the tape made."""
        return self._record(self._kind(signal, name=name, depth=depth))

    def apply(self, op: Op, *inputs: Node, name: str = "", depth: int = 0, parameters: str = "") -> Node:
        """Apply an op. `name` makes the result a site of the profile; `parameters` is its parameters' prefix."""
        signal = op.forward(*(node.signal for node in inputs))
        return self._record(self._kind(signal, op, inputs, name, depth, parameters or name))

    def backward(
        self,
        *seeds: tuple[Node, Gradient],
        done: Callable[[Node], None] | None = None,
        until: Node | None = None,
    ) -> None:
        """Send gradients from the seeded nodes to every node they depend on, or `until` one has all of its own.

        `done` sees each node after its gradient has gone on; it may let the gradient go.
        """
        for node in self.nodes:
            node.gradient, node.parameters = None, []
        for node, gradient in seeds:
            node.receive(gradient)
        for node in reversed(self.nodes):
            if node is until:
                return
            if node.gradient is None:
                continue
            if node.op is not None:
                signals = [source.signal for source in node.inputs]
                node.parameters = node.op.parameters(node.gradient, *signals)
                gradients = node.op.backward(node.gradient, node.signal, *signals)
                for source, gradient in zip(node.inputs, gradients, strict=True):
                    source.receive(gradient)
            if done is not None:
                done(node)

    def _record(self, node: Node) -> Node:
        self.nodes.append(node)
        return node
