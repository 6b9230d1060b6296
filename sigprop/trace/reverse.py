"""Going backward through a replay: drawn gradients, autograd, and the kernels of what arrives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.theory import Gradient, Node
from sigprop.theory.ops.base import ParameterState
from sigprop.trace.record import Field, Weight
from sigprop.trace.replay import DTYPE, Replay, root

_ROOT = "_sigprop_gradient_root"


def generator_of(seed: int, replica: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1009 + replica)


def gradient_rows(gradient: Gradient, channels: int, generator: torch.Generator) -> Tensor:
    values = gradient.kernel.values
    if not hasattr(values, _ROOT):
        setattr(values, _ROOT, root(values).to(DTYPE))
    return getattr(values, _ROOT) @ torch.randn(len(values), channels, generator=generator, dtype=DTYPE)


def kernel_of(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows @ rows.T / rows.shape[1]


class Reverse:
    """Gradients at the sources and the weights of a replay, averaged over replicas.

    `corrections`: what the gradient of a linear source's weight gains because its input and its gradient fluctuate
    together, per entry: the average of `sum G (K - E K)` over replicas.
    """

    def __init__(self, sources: tuple[Field, ...]):
        self.sources = sources
        self.kernels: list[Tensor | None] = [None] * len(sources)
        self.weights: dict[Weight, float] = {}
        self.corrections: dict[Node, float] = {}

    def add(self, replay: Replay, output: Tensor, gradient: Tensor, replicas: int) -> None:
        weights = list(replay.weights)
        inputs = [replay(source) for source in self.sources] + [replay.weights[w] for w in weights]
        found = torch.autograd.grad(output, inputs, gradient, allow_unused=True)
        for place, (source, value) in enumerate(zip(self.sources, found, strict=False)):
            if value is not None:
                kernel = kernel_of(replay.layout(source).to_rows(value)) / replicas
                before = self.kernels[place]
                self.kernels[place] = kernel if before is None else before + kernel
                shared = replay.fluctuation(source.node)
                if shared is not None:
                    change = float((kernel * shared).sum())
                    self.corrections[source.node] = self.corrections.get(source.node, 0.0) + change
        for weight, value in zip(weights, found[len(self.sources) :], strict=True):
            if value is not None:
                total = float(value.double().square().sum()) / replicas
                self.weights[weight] = self.weights.get(weight, 0.0) + total

    def states(self) -> list[ParameterState]:
        return [
            ParameterState(str(number), weight.shape, "", 0.0, torch.tensor(total / math.prod(weight.shape)))
            for number, (weight, total) in enumerate(self.weights.items())
        ]
