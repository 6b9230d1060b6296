"""What every blueprint is: settings, checked once, and a chain of theory ops built from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sigprop.errors import InputError, UnsupportedError, require, require_settings
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.graph.graph import Graph, NamedNode, Node
from sigprop.theory import Gradient, Signal
from sigprop.theory.ops import loss
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.sources import GivenSignal

Setting = float | Tensor
PerLayer = float | Tensor | Sequence[float]
TOPS = ("cross_entropy", "white_noise")


class Tape:
    """A graph while a blueprint records it, with its states, which run along."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.states = Evaluation(self.graph)

    def source(self, signal: Signal, name: str = "", depth: int = 0) -> Node:
        """A tensor that is given."""
        return self.apply(GivenSignal(signal), name=name, depth=depth)

    def apply(self, op: Op, *inputs: Node, name: str = "", depth: int = 0, parameters: str = "") -> Node:
        """Apply an op. `name` makes the result a site of the profile; `parameters` is its parameters' prefix."""
        node = self.graph.add(Node(op, inputs, parameters=parameters or name))
        self.states.run([node])
        return self.named(node, name, depth) if name else node

    def named(self, node: Node, name: str, depth: int) -> Node:
        """Make a tensor a site of the profile."""
        self.graph.sites.append(NamedNode(name, depth, node))
        return node

    def signal(self, node: Node) -> Signal:
        return self.states.signal(node)

    def backward(self, *seeds: tuple[Node, Gradient], until: Node | None = None) -> None:
        """Send gradients down from nodes."""
        self.states.backward(Start(list(seeds)), until=until)


@dataclass(frozen=True)
class Blueprint(ABC):
    """A declarative network. Numbers may be grids (tensors) wherever the state is exchangeable."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, tape: Tape) -> Node:
        """Record the whole network on the tape and return its output."""

    def top_gradient(self, tape: Tape, output: Node) -> Gradient:
        """The gradient of the loss at the output."""
        return loss.white_noise(tape.signal(output))

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Blueprint:
        """Build from keyword settings; an unknown key names its nearest neighbours."""
        require_settings(cls, settings, f"blueprint {cls.name}")
        return cls(**settings)


def run(blueprint: Blueprint, top: Gradient | None = None) -> tuple[Tape, Node]:
    """Forward and backward on one tape; `top` replaces the blueprint's own gradient at the output."""
    tape = Tape()
    output = blueprint.forward(tape)
    if not bool(torch.isfinite(tape.signal(output).kernel.values).any()):
        raise overflow("the output", [tape.signal(site.node).kernel.diagonal.max() for site in tape.graph.sites])
    tape.backward((output, blueprint.top_gradient(tape, output) if top is None else top))
    return tape, output


def overflow(where: str, levels: Sequence[Tensor]) -> UnsupportedError:
    """The error of a stack whose numbers leave the range of floating point; `levels` are its variances in order."""
    finite = [float(level) for level in levels if bool(torch.isfinite(level))]
    return UnsupportedError(
        f"the prediction of {where} is not finite: along the stack the variance of the signal goes from "
        f"{finite[0]:.3g} to {max(finite):.3g}, and what depends on it overflows. A norm in every block "
        "(norm_placement='pre'), or a smaller branch_scale, keeps it in range"
    )


def at_layer(value: PerLayer, layer: int | slice) -> Setting:
    """The value of a setting at one layer: a sequence has one entry per layer, anything else serves all."""
    if not isinstance(value, (list, tuple)):
        return value  # type: ignore[return-value]
    return value[layer] if isinstance(layer, int) else torch.tensor(value, dtype=torch.float64)


def depth_of(layer: int | slice) -> int:
    """The layer's number; 0 where all layers stand side by side."""
    return layer if isinstance(layer, int) else 0


def require_positive_int(key: str, value: object) -> None:
    require(
        isinstance(value, int) and not isinstance(value, bool) and value >= 1, key, value, "a positive whole number"
    )


def require_range(key: str, value: PerLayer, low: float, high: float, allowed: str) -> None:
    """Every entry finite and in `[low, high)`."""
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{key} = {value!r} is not allowed: needs {allowed}") from error
    require(bool(torch.isfinite(numbers).all()), key, value, "finite numbers")
    require(bool(((numbers >= low) & (numbers < high)).all()), key, value, allowed)


def require_layers(key: str, value: PerLayer, depth: int) -> None:
    if isinstance(value, (list, tuple)):
        require(len(value) == depth, key, f"{len(value)} values", f"one number, or one for each of {depth} layers")
    require_range(key, value, -math.inf, math.inf, "finite numbers")
