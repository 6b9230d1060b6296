"""Whatever has no rule of its own, evaluated on replayed draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from sigprop.theory import Dense, Evidence, Gradient, Node, Signal, Status
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.trace.attention import ReplayedAttention
from sigprop.trace.record import Field, Weight
from sigprop.trace.replay import Replay
from sigprop.trace.reverse import Reverse, generator_of, gradient_rows, kernel_of

ENTRIES = 2048
LARGEST = 1 << 23

__all__ = ["ReplayedAttention", "Sampled"]


@dataclass(eq=False)
class Sampled(Op):
    """Any function of its sources: Monte Carlo on the function itself, forward and, by autograd, backward."""

    target: Field
    seed: int
    reason: str
    _reverse: Reverse | None = field(default=None, repr=False)

    @property
    def sources(self) -> tuple[Field, ...]:
        return tuple(dict.fromkeys(source.field for source in self.target.sources))

    @property
    def replicas(self) -> int:
        size = sum(math.prod(source.shape) for source in self.sources) + math.prod(self.target.shape)
        wanted = math.ceil(ENTRIES / max(self.target.layout.channels, 1))
        return max(2, min(64, wanted, LARGEST // size))

    @property
    def weights(self) -> list[Weight]:
        return list(self._reverse.weights) if self._reverse is not None else []

    @property
    def corrections(self) -> dict[Node, float]:
        return self._reverse.corrections if self._reverse is not None else {}

    def forward(self, *inputs: Signal) -> Signal:
        layout = self.target.layout
        kernel = torch.zeros(layout.positions, layout.positions, dtype=torch.float64)
        mean = torch.zeros(layout.positions, dtype=torch.float64)
        for replica in range(self.replicas):
            rows = layout.to_rows(Replay(generator_of(self.seed, replica))(self.target)).double()
            kernel += kernel_of(rows) / self.replicas
            mean += rows.mean(1) / self.replicas
        evidence = Evidence(Status.SAMPLED, self.reason)
        for x in inputs:
            evidence = x.evidence.join(evidence)
        return Signal(Dense(kernel), mean, layout.channels, evidence=evidence)

    def _run(self, gradient: Gradient) -> Reverse:
        if self._reverse is None:
            self._reverse = Reverse(self.sources)
            for replica in range(self.replicas):
                generator = generator_of(self.seed, replica)
                replay = Replay(generator, gradients=True)
                output = replay(self.target)
                if output.requires_grad:
                    rows = gradient_rows(gradient, self.target.layout.channels, generator)
                    self._reverse.add(replay, output, self.target.layout.from_rows(rows), self.replicas)
        return self._reverse

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        return self._run(gradient).states()

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        evidence = gradient.evidence.join(output.evidence)
        kernels = self._run(gradient).kernels
        return tuple(None if k is None else Gradient(Dense(k), evidence=evidence) for k in kernels)
