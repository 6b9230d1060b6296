"""The graph of a network: which op makes which tensor, of which others, with which weights. It holds no state.

What signals and gradients are under given laws of the weights is computed in one place (`evaluate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sigprop.graph.weights import Weight
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Signal

Bound = Mapping[str, tuple[Weight, int]]
"""For each parameter of an op the weight behind it, with its number of entries."""
Doubt = str | Callable[[Any, Signal], str]
"""What an op does not follow of this use of it: words, or a function of an evaluation and the state that gives them."""


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One tensor: the op that makes it, of which others.

    `parameters` is the prefix of the names of the op's parameters, where they have no weights of their own.
    """

    op: Op
    inputs: tuple[Node, ...] = ()
    weights: Bound = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    parameters: str = ""


@dataclass(frozen=True)
class NamedNode:
    """A name that a tensor has in the profile."""

    name: str
    depth: int
    node: Node


class Graph:
    """Nodes in the order they were recorded. Recording appends; what is recorded does not change.

    `lookups`: nodes that are rows of a table, its name and the ids; `origins`: nodes that count as positions of another
    one that they were not made of, and which; the last one counts, and for what was recorded earlier those before.
    `loss_seed`: that of outputs that are drawn for a loss, whichever it is.
    """

    def __init__(self, loss_seed: int = 1) -> None:
        self.loss_seed = loss_seed
        self.nodes: list[Node] = []
        self.sites: list[NamedNode] = []
        self.lookups: dict[Node, tuple[str, Tensor]] = {}
        self.origins: dict[Node, dict[Node, Tensor]] = {}

    def add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node
