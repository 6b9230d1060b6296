"""Positions become channels: windows, patches, flattened images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class PositionsToChannels(Op):
    """Positions become channels: `rows[r, q]` are the positions that position `r` takes in; -1 is a zero.

    Forward   `K'[r,r'] = average over q of K[rows(r,q), rows(r',q)]`

    `mixes`: the positions are to be mixed at random, alike in all `d` channels. The product of two such mixtures has
    the relative variance `sum_qq' E K^2 / (sum_q K_qq)^2`, of the part that differs between channels:
    `pair_fluctuation` is `d` times that, from the expected kernel and from its own fluctuation.
    """

    rows: Tensor
    width: int
    mixes: bool = False

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, mean = torch.nn.functional.pad(x.kernel.values, (0, 1, 0, 1)), torch.nn.functional.pad(x.mean, (0, 1))
        values = sum(kernel[q][:, q] for q in self.rows.T) / self.rows.shape[1]
        assert isinstance(values, Tensor)
        made = replace(x, kernel=Dense(values), mean=mean[self.rows].mean(1), width=self.width)
        return replace(made, pair_fluctuation=self._of_mixtures(x)) if self.mixes else made

    def _of_mixtures(self, x: Signal) -> Tensor:
        common = x.mean.square().mean() / x.kernel.diagonal.mean().clamp_min(1e-300) + x.common_share
        kernel = torch.nn.functional.pad(x.covariance.scale_diagonal(1.0 - x.common_share).values, (0, 1, 0, 1))
        pairs = kernel.square()[self.rows[:, :, None], self.rows[:, None, :]].sum((1, 2))
        level = kernel.diagonal()[self.rows].sum(1).square().clamp_min(1e-300)
        inherited = (x.pair_fluctuation - 1.0) / (1.0 - common).clamp_min(1e-3) ** 2
        return x.width * (pairs / level).mean() + 1.0 + inherited

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        size = len(inputs[0].mean)
        values = torch.zeros(size + 1, size + 1, dtype=gradient.kernel.values.dtype)
        for q in self.rows.T:
            values[q[:, None], q[None, :]] += gradient.kernel.values
        return (replace(gradient_of(values[:size, :size], gradient), excess=gradient.excess),)
