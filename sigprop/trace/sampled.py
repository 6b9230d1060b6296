"""Whatever has no rule of its own, evaluated on replayed draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sigprop.theory import Dense, Evidence, Gradient, Signal, Status
from sigprop.theory.carries import TRANSFORMED, Carries, ended
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.parts import Fluctuation
from sigprop.theory.status import EXACT
from sigprop.trace.attention import ReplayedAttention
from sigprop.trace.drawn_gradient import DrawnGradient
from sigprop.trace.ensemble import Ensemble
from sigprop.trace.record import LONG_TAILS, ONE_NUMBER, Field, Weight
from sigprop.trace.replay import Replay, parts_of_sources, records_between, sites_between
from sigprop.trace.reverse import ReplayedOp, Reverse, generator_of, kernel_of

ENTRIES, MOST = 2048, 64
"""Entries of the result that are drawn at least, in no more replicas than this."""
LARGEST = 1 << 23
MANY_ENTRIES, CHEAP = 16384, 1 << 19
"""Entries that are drawn where all replicas together hold no more than `CHEAP` numbers."""
MANY = 2048
"""Replicas that are never exceeded: of one number they tell the mean square to 3 %."""

STEERED, ACROSS = 8, 0.8
"""Channels of a result for each one that steers it, and radial share of a gradient, from which on that is a guess."""
STEERS = "few channels that steer many, under a gradient across these"

MUCH = 0.03
"""Share of a gradient's energy along the signal, from which on what follows below is a guess."""

TAILS = "a gradient through a norm over {} numbers has a long tail"

__all__ = ["ReplayedAttention", "Sampled"]


@dataclass(eq=False)
class Sampled(ReplayedOp):
    """Any function of its sources: Monte Carlo on the function itself, forward and, by autograd, backward."""

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=ended("Monte Carlo of a function gives kernel and mean"),
        directions=ended("gradients are drawn with it; what autograd makes of it is not followed"),
        along_signal=ended("gradients are drawn with it; what autograd makes of it is not followed"),
        through_activation=ended("gradients are drawn with it; what autograd makes of it is not followed"),
    )

    target: Field
    seed: int
    reason: str
    _reverse: Reverse | None = field(default=None, repr=False)
    _along_signal: float = 0.0
    _norms: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.parts = parts_of_sources(self.target)

    @property
    def replicas(self) -> int:
        size = sum(math.prod(source.shape) for source in self.sources) + math.prod(self.target.shape)
        drawn = [part.layout.channels for parts in self.parts.values() for part in parts]
        channels = max(1, min([self.target.layout.channels, *drawn]))
        few = min(MOST, math.ceil(ENTRIES / channels), LARGEST // size)
        return max(2, few, min(math.ceil(MANY_ENTRIES / channels), CHEAP // size, MANY))

    def _replays(self, gradients: bool = False) -> Iterator[Replay]:
        ensemble = Ensemble(self.replicas, generator_of(self.seed, 0), self.reading)
        drawn = [part for parts in self.parts.values() for part in parts]
        for replica in range(self.replicas):
            yield Replay(generator_of(self.seed, replica + 1), gradients, ensemble, replica, drawn, self.reading)

    def forward(self, *inputs: Signal) -> Signal:
        layout = self.target.layout
        kernel = torch.zeros(layout.positions, layout.positions, dtype=torch.float64)
        mean, norms = torch.zeros(layout.positions, dtype=torch.float64), []
        for replay in self._replays():
            rows = layout.to_rows(replay(self.target)).double()
            kernel += kernel_of(rows) / self.replicas
            mean += rows.mean(1) / self.replicas
            norms.append(rows.square().mean(1))
        evidence = Evidence(Status.SAMPLED, self.reason)
        calls = [record.call.name for record in records_between(self.target, self.parts) if record.call is not None]
        if any("fft" in name for name in calls):
            evidence = Evidence(Status.ASSUMED, "channels of a Fourier transform are taken as independent")
        for x in inputs:
            evidence = x.evidence.join(evidence)
        self._norms = torch.stack(norms)
        fluctuation = Fluctuation(_fluctuation(self._norms, layout.channels))
        return Signal(Dense(kernel), mean, layout.channels, fluctuation, evidence=evidence)

    def _run(self, gradient: Gradient) -> Reverse:
        if self._reverse is None:
            self._reverse = Reverse(self.parts, sites_between(self.target, self.parts))
            drawn, layout = DrawnGradient(gradient, self._kernel), self.target.layout
            self._along_signal = drawn.along_signal
            weights = drawn.weights(self._squared_norms(drawn.groups))
            for replay, weight in zip(self._replays(gradients=True), weights, strict=True):
                output = replay(self.target)
                if output.requires_grad:
                    rows = drawn.rows(layout.to_rows(output.detach()), weight, replay.generator)
                    self._reverse.add(replay, output, layout.from_rows(rows))
            self._reverse.scale(drawn.level / self.replicas)
        return self._reverse

    def _squared_norms(self, groups: int) -> Tensor:
        """`[replica, position, group]`: those of all channels as the forward pass drew them."""
        if groups == 1 and self._norms is not None:
            return self._norms[..., None]
        rows = (self.target.layout.to_rows(replay(self.target)).double() for replay in self._replays())
        return torch.stack([item.square().unflatten(1, (groups, -1)).mean(2) for item in rows])

    def norm_of_groups(self, groups: int) -> float:
        """The fluctuation of the norms of groups of channels, as heads are, which may differ from one to the next."""
        norms = self._squared_norms(groups).transpose(0, 1).flatten(1).T
        return float(_fluctuation(norms, self.target.layout.channels // groups))

    def _kernel(self) -> Tensor:
        rows = (self.target.layout.to_rows(replay(self.target)).double() for replay in self._replays())
        return torch.stack([kernel_of(item) for item in rows]).mean(0)

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        self._run(gradient)
        if self.gradient_evidence(gradient) is not EXACT:
            return self.gradient_evidence(gradient)
        if self._along_signal:
            why = "weights inside a sampled function, under a gradient along its result"
            return Evidence(Status.ASSUMED, why)
        between = records_between(self.target, self.parts)
        single = any(isinstance(item, Weight) and math.prod(item.shape) == 1 for item in between)
        return Evidence(Status.ASSUMED, ONE_NUMBER) if single else EXACT

    def gradient_evidence(self, gradient: Gradient) -> Evidence:
        """Few channels that move all others together, as the steps of a scan do, feel more of what a norm above does to
        them than each token's own direction."""
        drawn = [part.layout.channels for parts in self.parts.values() for part in parts]
        few = min(drawn, default=0) * STEERED < self.target.layout.channels
        return Evidence(Status.ASSUMED, STEERS) if few and float(gradient.directions.radial) < ACROSS else EXACT

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        return self._run(gradient).states()

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        evidence, kernels = gradient.evidence.join(output.evidence), self._run(gradient).kernels
        root = self.target.root
        if root is not None and 0 < root.of_few <= LONG_TAILS:
            evidence = evidence.join(Evidence(Status.ASSUMED, TAILS.format(root.of_few)))
        if self._along_signal > MUCH:
            evidence = evidence.join(Evidence(Status.ASSUMED, "a gradient along the signal ends at a sampled function"))
        evidence = evidence.join(self.gradient_evidence(gradient))
        return tuple(None if k is None else Gradient(Dense(k), evidence=evidence) for k in kernels)


def _fluctuation(norms: Tensor, channels: int) -> Tensor | float:
    """That of squared norms `n` `[draw, position]`, by what a norm above makes of it: `1 - 1/(E n E 1/n)`.

    For Gaussian channels that is the relative variance; of norms with long tails it is less.
    """
    known = (norms > 0.0).all(0)
    if not bool(known.any()):
        return 2.0
    seen, count = norms[:, known], len(norms)
    excess = (seen.mean(0) * (1.0 / seen).mean(0) - 1.0).mean() * count / max(count - 1, 1)
    return excess / (1.0 + excess) * channels
