"""Channels of several tensors side by side."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class CatChannels(Op):
    """Channels of several tensors side by side: the average of their states, weighted by their widths."""

    shares: tuple[float, ...]
    width: int

    def forward(self, *inputs: Signal) -> Signal:
        kernel = sum(share * x.kernel.values for share, x in zip(self.shares, inputs, strict=True))
        mean = sum(share * x.mean for share, x in zip(self.shares, inputs, strict=True))
        assert isinstance(kernel, Tensor)
        assert isinstance(mean, Tensor)
        evidence = inputs[0].evidence
        for x in inputs[1:]:
            evidence = evidence.join(x.evidence)
        return Signal(Dense(kernel), mean, self.width, evidence=evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        return tuple(Gradient(gradient.kernel, evidence=gradient.evidence) for _ in inputs)
