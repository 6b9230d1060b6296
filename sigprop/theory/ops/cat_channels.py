"""Channels of several tensors side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries, ended
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op, joined_evidence
from sigprop.theory.parts import Common, Directions, Fluctuation
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class CatChannels(Op):
    """Channels side by side: the average of the states, weighted by their widths.

    Forward   `K_y = sum w K_x`, mean `sum w m`, `w` the share of the channels
    Backward  each gets the gradient of its channels; of the shares `p` of that along the signal and along all ones it
              has `e p + 1 - e` and `w p + 1 - w`, as the summands of a residual sum do, with `e` the share of the
              squared norm that a tensor brings

    `norm` and `pair` are `sum e^2 v / w`, what is inherited is in step, `(sum e sqrt(v / w))^2`, and what is uniform
    `sum e u`. Exact for independent tensors.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=TRANSFORMED,
        directions=TRANSFORMED,
        along_signal=KEPT,
        through_activation=ended("channels of different tensors have laws of their own under one function"),
    )

    shares: tuple[float, ...]
    width: int

    def forward(self, *inputs: Signal) -> Signal:
        kernel = torch.stack([s * x.kernel.values for s, x in zip(self.shares, inputs, strict=True)]).sum(0)
        mean = torch.stack([s * x.mean for s, x in zip(self.shares, inputs, strict=True)]).sum(0)
        brought = list(zip(self._brought(inputs), self.shares, inputs, strict=True))
        step = sum(e * (torch.as_tensor(x.fluctuation.pair_inherited) / w).sqrt() for e, w, x in brought)
        fluctuation = Fluctuation(
            sum(e**2 * x.fluctuation.norm / w for e, w, x in brought),
            sum(e**2 * x.fluctuation.pair / w for e, w, x in brought),
            step**2,
        )
        common = Common(
            sum(e * x.common.uniform for e, _, x in brought), sum(e * w * x.common.share for e, w, x in brought)
        )
        evidence = joined_evidence(*inputs)
        return self.carries.signal(
            inputs[0], Dense(kernel), mean, self.width, evidence, fluctuation=fluctuation, common=common
        )

    def _brought(self, inputs: tuple[Signal, ...]) -> list[Tensor]:
        energies = [share * x.kernel.diagonal.mean() for share, x in zip(self.shares, inputs, strict=True)]
        total = torch.stack(energies).sum().clamp_min(1e-300)
        return [energy / total for energy in energies]

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        before = gradient.directions
        found = []
        for part, share in zip(self._brought(inputs), self.shares, strict=True):
            directions = Directions(1.0 + (before.radial - 1.0) * part, 1.0 + (before.uniform - 1.0) * share)
            found.append(self.carries.gradient(gradient, gradient.kernel, directions=directions))
        return tuple(found)
