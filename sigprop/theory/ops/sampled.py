"""Whatever has no rule of its own, evaluated on draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sigprop.theory.carries import TRANSFORMED, Carries, ended
from sigprop.theory.drawing import kernel_of
from sigprop.theory.drawn_gradient import DrawnGradient
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.drawn import DrawnOp, OpDraws
from sigprop.theory.parts import Fluctuation
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import EXACT, Evidence, Status

STEERED, ACROSS = 8, 0.8
"""Channels of a result for each one that steers it, and radial share of a gradient, from which on that is a guess."""
STEERS = "few channels that steer many, under a gradient across these"
MUCH = 0.03
"""Share of a gradient's energy along the signal, from which on what follows below is a guess."""
ENDS = "a gradient along the signal ends at a sampled function"
INSIDE = "weights inside a sampled function, under a gradient along its result"


class FunctionDraw(Protocol):
    """One draw of the result, `rows[position, channel]`."""

    @property
    def rows(self) -> Tensor: ...

    @property
    def generator(self) -> torch.Generator: ...

    @property
    def has_sources(self) -> bool: ...

    def send(self, gradient: Tensor) -> None:
        """Let the sources receive a gradient of the rows."""
        ...


class FunctionDraws(OpDraws, Protocol):
    """Who draws the function: `replicas` times, `channels` of the result, of which `fewest` steer it all.

    `doubts`: what draws of this function do not tell of its `signal`, `gradient` and `parameters`.
    """

    @property
    def replicas(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def fewest(self) -> int: ...

    @property
    def doubts(self) -> Mapping[str, str]: ...

    def rows(self) -> Iterator[Tensor]: ...

    def backward(self) -> Iterator[FunctionDraw]: ...

    def scale_received(self, factor: float) -> None: ...


@dataclass(eq=False)
class Sampled(DrawnOp):
    """`y = f(x, ..)`, any function of its sources: Monte Carlo on the function itself.

    Forward   `K_y`, mean and fluctuation of norms as drawn
    Backward  gradients drawn with the kernel above, and with what they have in common with the signal, sent through
              the function by autograd
    Weights   of those that the function draws inside, likewise

    Exact up to the error of the draws, for sources with independent Gaussian channels.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=ended("Monte Carlo of a function gives kernel and mean"),
        directions=ended("gradients are drawn with it; what autograd makes of it is not followed"),
        along_signal=ended("gradients are drawn with it; what autograd makes of it is not followed"),
        through_activation=ended("gradients are drawn with it; what autograd makes of it is not followed"),
    )

    draws: FunctionDraws
    reason: str
    _along_signal: float = 0.0
    _norms: Tensor | None = None

    def forward(self, *inputs: Signal) -> Signal:
        kernel, mean, norms = torch.zeros(()), torch.zeros(()), []
        for drawn in self.draws.rows():
            rows = drawn.double()
            kernel = kernel + kernel_of(rows) / self.draws.replicas
            mean = mean + rows.mean(1) / self.draws.replicas
            norms.append(rows.square().mean(1))
        doubt = self.draws.doubts.get("signal")
        evidence = Evidence(Status.SAMPLED, self.reason) if doubt is None else Evidence(Status.ASSUMED, doubt)
        for x in inputs:
            evidence = x.evidence.join(evidence)
        self._norms = torch.stack(norms)
        fluctuation = Fluctuation(_fluctuation(self._norms, self.draws.channels))
        x: Any = inputs[0] if inputs else None  # a function of weights alone keeps no part
        return self.carries.signal(x, Dense(kernel), mean, self.draws.channels, evidence, fluctuation=fluctuation)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        received, _ = self.sent(gradient, *inputs)
        self._sent = None
        evidence = gradient.evidence.join(output.evidence)
        for doubt in (self.draws.doubts.get("gradient"), ENDS if self._along_signal > MUCH else None):
            evidence = evidence if doubt is None else evidence.join(Evidence(Status.ASSUMED, doubt))
        evidence = evidence.join(self.gradient_evidence(gradient))
        return tuple(
            None if kernel is None else self.carries.gradient(gradient, Dense(kernel), evidence)
            for kernel in received.kernels
        )

    def _send(self, gradient: Gradient, *inputs: Signal) -> None:
        drawn = DrawnGradient(gradient, self._kernel)
        self._along_signal = drawn.along_signal
        weights = drawn.weights(self._squared_norms(drawn.groups))
        for draw, weight in zip(self.draws.backward(), weights, strict=True):
            if draw.has_sources:
                draw.send(drawn.rows(draw.rows, weight, draw.generator))
        self.draws.scale_received(drawn.level)

    def _kernel(self) -> Tensor:
        return torch.stack([kernel_of(rows.double()) for rows in self.draws.rows()]).mean(0)

    def _squared_norms(self, groups: int) -> Tensor:
        """`[replica, position, group]`: those of all channels as the forward pass drew them."""
        if groups == 1 and self._norms is not None:
            return self._norms[..., None]
        rows = (item.double().square() for item in self.draws.rows())
        return torch.stack([item.unflatten(1, (groups, -1)).mean(2) for item in rows])

    def norm_of_groups(self, groups: int) -> float | None:
        norms = self._squared_norms(groups).transpose(0, 1).flatten(1).T
        return float(_fluctuation(norms, self.draws.channels // groups))

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        if self.gradient_evidence(gradient) is not EXACT:
            return self.gradient_evidence(gradient)
        doubt = INSIDE if self._along_signal else self.draws.doubts.get("parameters")
        return EXACT if doubt is None else Evidence(Status.ASSUMED, doubt)

    def gradient_evidence(self, gradient: Gradient) -> Evidence:
        """Few channels that move all others together, as the steps of a scan do, feel more of what a norm above does to
        them than each token's own direction."""
        few = self.draws.fewest * STEERED < self.draws.channels
        return Evidence(Status.ASSUMED, STEERS) if few and float(gradient.directions.radial) < ACROSS else EXACT


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
