"""Positions of several tensors one after another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class CatPositions(Op):
    """Positions of several independent tensors one after another."""

    def forward(self, *inputs: Signal) -> Signal:
        covariance = torch.block_diag(*(x.covariance.values for x in inputs))
        mean = torch.cat([x.mean for x in inputs])
        evidence = inputs[0].evidence
        for x in inputs[1:]:
            evidence = evidence.join(x.evidence)
        kernel = Dense(covariance + mean[:, None] * mean)
        return Signal(kernel, mean, inputs[0].width, evidence=evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        found, start = [], 0
        for x in inputs:
            stop = start + len(x.mean)
            found.append(gradient_of(gradient.kernel.values[start:stop, start:stop], gradient))
            start = stop
        return tuple(found)
