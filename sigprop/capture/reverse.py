"""Going backward through a replay: drawn gradients, autograd, and the kernels of what arrives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sigprop.capture.record import Field, Weight
from sigprop.capture.replay import Joint, Replay
from sigprop.graph.graph import Node
from sigprop.theory.drawing import kernel_of
from sigprop.theory.ops.base import ParameterState

FEW = 12
"""Replicas that tell how much they scatter."""


def generator_of(seed: int, replica: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1009 + replica)


class Reverse:
    """Gradients at the sources and the weights of replays: added one by one, then averaged.

    `corrections`: what the gradient of a linear source's weight gains because its input and its gradient fluctuate
    together, per entry: the average of `sum G (K - E K)` over replicas. `passed`: kernels at sites on the way.
    """

    def __init__(self, parts: dict[Field, list[Field]], sites: Sequence[Field] = (), joint: Joint | None = None):
        self.parts, self._joint = parts, joint
        self._alone = [source for source in parts if joint is None or source not in joint.spans]
        self.passed: dict[Field, Tensor] = dict.fromkeys(sites, torch.zeros(()))
        self.kernels: list[Tensor | None] = [None] * (len(self._alone) + (joint is not None))
        self.weights: dict[Weight, float] = {}
        self.corrections: dict[Node, float] = {}
        self._energies: list[list[Tensor]] = [[] for _ in self.kernels]

    def add(self, replay: Replay, output: Tensor, gradient: Tensor) -> None:
        weights = list(replay.weights)
        drawn = [part for parts in self.parts.values() for part in parts]
        inputs = [replay(part) for part in drawn] + [replay.weights[w] for w in weights]
        on_way = [site for site in self.passed if replay(site).requires_grad]
        found = torch.autograd.grad(output, [*inputs, *map(replay, on_way)], gradient, allow_unused=True)
        for site, value in zip(on_way, found[len(inputs) :], strict=True):
            if value is not None:
                self.passed[site] = self.passed[site] + kernel_of(replay.to_rows(site, value)).sum(0)
        arrived = dict(zip(drawn, found, strict=False))
        for place, source in enumerate(self._alone):
            parts = self.parts[source]
            kernels = [
                kernel_of(replay.to_rows(part, value))
                * (replay.heads_left_out(part) * part.layout.channels / source.layout.channels)
                for part in parts
                if (value := arrived[part]) is not None
            ]
            if kernels:
                self._receive(place, replay, source.node, torch.stack(kernels).sum(0))
        if self._joint is not None:
            rows = torch.zeros(())
            for source, span in self._joint.spans.items():
                if (value := arrived[source]) is not None:
                    own = replay.to_rows(source, value)
                    after = replay.states.positions(self._joint.node) - span.stop
                    rows = rows + torch.nn.functional.pad(own, (0, 0, span.start, after))
            if rows.ndim:
                self._receive(-1, replay, self._joint.node, kernel_of(rows))
        for weight, value in zip(weights, found[len(drawn) : len(inputs)], strict=True):
            if value is not None:
                total = float(value.double().square().sum()) / replay.weight_share
                self.weights[weight] = self.weights.get(weight, 0.0) + total

    def _receive(self, place: int, replay: Replay, node: Node, kernels: Tensor) -> None:
        """The kernels that arrive at a source, one for every replica."""
        before, kernel = self.kernels[place], kernels.sum(0)
        self.kernels[place] = kernel if before is None else before + kernel
        shared = replay.fluctuation(node)
        if shared is not None:
            change = (kernels * shared).sum((1, 2))
            self._energies[place].append(
                change + (kernels * replay.states.signal(node.inputs[0]).kernel.values).sum((1, 2))
            )
            self.corrections[node] = self.corrections.get(node, 0.0) + float(change.sum())

    def is_steady(self, error: float) -> bool:
        """Whether the weight gradients of all linear sources are known to a relative standard error.

        Replicas are taken as independent, which is cautious: in groups their fluctuations cancel.
        """
        found = [torch.cat(energies) for energies in self._energies if energies]
        steady = [len(e) >= FEW and float(e.std()) <= error * float(e.mean()) * len(e) ** 0.5 for e in found]
        return bool(steady) and all(steady)

    def scale(self, factor: float) -> None:
        """Multiply all that was added."""
        self.kernels = [None if kernel is None else kernel * factor for kernel in self.kernels]
        self.passed = {site: kernel * factor for site, kernel in self.passed.items()}
        self.weights = {weight: total * factor for weight, total in self.weights.items()}
        self.corrections = {node: change * factor for node, change in self.corrections.items()}

    def states(self) -> list[ParameterState]:
        return [
            ParameterState(str(number), weight.shape, "", 0.0, torch.tensor(total / math.prod(weight.shape)))
            for number, (weight, total) in enumerate(self.weights.items())
        ]
