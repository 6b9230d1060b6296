"""Draws without a model: attention weights that are given, and a function of one Gaussian tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sigprop.theory import Signal
from sigprop.theory.drawing import DTYPE, drawn_rows, kernel_of, root_of
from sigprop.theory.ops.attention.drawn import Sequences
from sigprop.theory.ops.base import Coupling, ParameterState


@dataclass
class ReceivedNothing:
    """What arrived at the sources: `kernels` and what couples the first to its signal, and nothing elsewhere."""

    kernels: list[Tensor | None] = field(default_factory=list)
    first: Coupling = field(default_factory=Coupling)
    weights: dict = field(default_factory=dict)
    corrections: dict = field(default_factory=dict)
    passed: dict = field(default_factory=dict)

    def states(self) -> list[ParameterState]:
        return []

    def has_tail(self, receiver: object) -> bool:
        return False

    def coupling(self, number: int) -> Coupling:
        return self.first


@dataclass
class GivenHead:
    heads: GivenHeads
    matrix: Tensor
    generator: torch.Generator
    has_sources: bool = False

    def values(self) -> Tensor:
        value = self.heads.value
        return torch.cat((root_of(value.covariance.values), value.mean[:, None]), 1).to(DTYPE)[None]

    def send(self, gradient: Tensor) -> None:
        self.heads.sent.append(gradient)


class GivenHeads:
    """The same weights `[head, output, value]` in every network; what is sent to their sources is kept."""

    sequences = Sequences()
    fewest_entries = math.inf

    def __init__(self, value: Signal, weights: Tensor, draws: int = 1, has_sources: bool = False):
        self.value, self.draws, self.has_sources = value, draws, has_sources
        self.matrix = weights.to(DTYPE)[None, :, None]
        self.width = self.value_width = self.head_width = value.width
        self.received: ReceivedNothing | None = None
        self.sent: list[Tensor] = []

    def bound(self, states: object) -> GivenHeads:
        return self

    def forward(self) -> Iterator[GivenHead]:
        for seed in range(self.draws):
            yield GivenHead(self, self.matrix, torch.Generator().manual_seed(seed), self.has_sources)

    def are_precise(self, energies: Tensor) -> bool:
        return False

    def backward(self) -> Iterator[GivenHead]:
        self.received = ReceivedNothing()
        return self.forward()

    def scale_received(self, factor: float) -> None:
        self.sent = [item * factor**0.5 for item in self.sent]


@dataclass
class DrawnResult:
    function: DrawnFunction
    source: Tensor
    result: Tensor
    generator: torch.Generator
    has_sources: bool = True

    @property
    def rows(self) -> Tensor:
        return self.result.detach()

    def send(self, gradient: Tensor) -> None:
        (found,) = torch.autograd.grad(self.result, self.source, gradient)
        received = self.function.received
        assert received is not None
        before = received.kernels[0]
        received.kernels[0] = kernel_of(found) + (0.0 if before is None else before)
        received.first.add(self.source.detach()[None], found[None], self.function.x.kernel.values)


class DrawnFunction:
    """A function of one Gaussian tensor, drawn many times."""

    def __init__(self, function: Callable[[Tensor], Tensor], x: Signal, replicas: int = 400):
        self.function, self.x, self.replicas = function, x, replicas
        self.channels, self.fewest, self.fewest_entries = x.width, x.width, math.inf
        self.doubts: dict[str, str] = {}
        self.received: ReceivedNothing | None = None

    def bound(self, states: object) -> DrawnFunction:
        return self

    def _draws(self) -> Iterator[DrawnResult]:
        root = root_of(self.x.covariance.values)
        for seed in range(self.replicas):
            generator = torch.Generator().manual_seed(seed)
            source = drawn_rows(root, self.x.width, generator) + self.x.mean.to(DTYPE)[:, None]
            source.requires_grad_()
            yield DrawnResult(self, source, self.function(source), generator)

    def rows(self) -> Iterator[Tensor]:
        return (draw.rows for draw in self._draws())

    def backward(self) -> Iterator[DrawnResult]:
        self.received = ReceivedNothing([None])
        return self._draws()

    def scale_received(self, factor: float) -> None:
        assert self.received is not None
        assert self.received.kernels[0] is not None
        self.received.kernels[0] *= factor / self.replicas
        self.received.first = self.received.first.scaled(factor / self.replicas)
