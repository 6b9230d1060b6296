"""Positions of several tensors one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op, joined_evidence
from sigprop.theory.parts import AlongSignal, Common, Fluctuation, ThroughActivation
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class CatPositions(Op):
    """Positions of several independent tensors one after another; fluctuations are averages over positions.

    Backward  each gets the block of its positions of `G`, `B` and `H`. What `sum_t g_t x_t` has over all positions
              cannot be told apart again: that ends
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=TRANSFORMED,
        directions=KEPT,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    def forward(self, *inputs: Signal) -> Signal:
        covariance = torch.block_diag(*(x.covariance.values for x in inputs))
        mean = torch.cat([x.mean for x in inputs])
        counts = [len(x.mean) / len(mean) for x in inputs]

        def average(part: str, name: str) -> Tensor | float:
            return sum(n * getattr(getattr(x, part), name) for n, x in zip(counts, inputs, strict=True))

        return self.carries.signal(
            inputs[0],
            Dense(covariance + mean[:, None] * mean),
            mean,
            evidence=joined_evidence(*inputs),
            fluctuation=Fluctuation(*(average("fluctuation", name) for name in ("norm", "pair", "pair_inherited"))),
            common=Common(*(average("common", name) for name in ("uniform", "share", "mixed"))),
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        found, start = [], 0
        for x in inputs:
            found.append(self._block(gradient, slice(start, start + len(x.mean))))
            start += len(x.mean)
        return tuple(found)

    def _block(self, gradient: Gradient, own: slice) -> Gradient:
        def cut(values: Tensor | float) -> Tensor | float:
            if not isinstance(values, Tensor):
                return values
            return values[own] if values.ndim == 1 else values[own, own]

        through = tuple(
            replace(item, kernel=Dense(item.kernel.values[own, own]), passed=Dense(item.passed.values[own, own]))
            for item in gradient.through_activation.gradients
        )
        return self.carries.gradient(
            gradient,
            Dense(gradient.kernel.values[own, own]),
            along_signal=AlongSignal(cut(gradient.along_signal.slope), cut(gradient.along_signal.rest)),
            through_activation=ThroughActivation(through),
        )
