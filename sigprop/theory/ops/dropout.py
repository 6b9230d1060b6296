"""Dropout in training mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.modulate import Factors
from sigprop.theory.states import ALL_TRANSFORMED, Signal


@dataclass(frozen=True)
class Dropout(Factors):
    """`y = x * mask / (1 - p)`, masks independent over tokens and channels.

    Forward   `K_y = K_x`, same-token values over `1 - p`
    Backward  `G_x = G_y`, same-token values, and the slope of a token on itself, over `1 - p`

    Of what is uniform over channels `1 - p` stays; the norm fluctuates by `3 p / (1 - p)` more.
    Exact in expectation (dslm B.3).
    """

    carries = ALL_TRANSFORMED

    probability: Tensor | float
    mean = 1.0

    def square(self, kernel: Kernel) -> Tensor:
        return kernel.like(torch.ones_like(kernel.values)).scale_diagonal(1.0 / self.even).values

    @property
    def even(self) -> Tensor | float:
        return 1.0 - self.probability

    def forward(self, *inputs: Signal) -> Signal:
        made, kept = super().forward(*inputs), self.even
        norm = made.fluctuation.norm + 3.0 * self.probability / kept
        common = replace(made.common, share=made.common.share * kept, mixed=made.common.mixed * kept)
        return replace(made, fluctuation=replace(made.fluctuation, norm=norm), common=common)
