"""The sum of two tensors that have parts in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.theory.carries import TRANSFORMED, Carries
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.residual import Residual
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status


@dataclass(frozen=True)
class Piece:
    """A part of a tensor: at each position so much of that position of the part; `bent` through a function of it."""

    share: Tensor
    index: Tensor
    bent: bool = False


@dataclass(frozen=True, eq=False)
class SharedResidual(Residual):
    """The sum of two tensors that both have pieces of the further inputs.

    Forward   `K_z = K_x + K_f + C + C^T`, `C` the covariance of the pieces
    Backward  each further input `u` also receives `a_t b_s G_ts` and its transpose: its two gradients are in step
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=TRANSFORMED,
        directions=TRANSFORMED,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

    pieces: tuple[tuple[Piece, Piece], ...] = ()

    def bound(self, states: Any, node: Any) -> SharedResidual:
        first, second, *parts = node.inputs
        return replace(self, pieces=tuple(states.shared_parts.again(first, second, parts, self.pieces)))

    def forward(self, *inputs: Signal) -> Signal:
        made = super().forward(*inputs[:2])
        values = made.kernel.values
        for (mine, other), part in zip(self.pieces, inputs[2:], strict=True):
            covariance = part.covariance.values[mine.index][:, other.index]
            cross = covariance * mine.share[:, None] * other.share * self.skip * self.branch
            values = values + cross + cross.T
        return replace(made, kernel=Dense(values)).note(Status.ASYMPTOTIC, "a part that was added before, in step")

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        found = list(super().backward(gradient, output, *inputs[:2]))
        for (mine, other), part in zip(self.pieces, inputs[2:], strict=True):
            scaled = gradient.kernel.values * self.skip * self.branch
            found.append(between_pieces(scaled, mine, other, part, gradient))
        return tuple(found)


def between_pieces(values: Tensor, mine: Piece, other: Piece, part: Signal, gradient: Gradient) -> Gradient:
    """What a part receives because gradients at two pieces of it are in step, `values` the kernel between them."""
    values, count = values * mine.share[:, None] * other.share, len(part.mean)
    total = torch.zeros(count, values.shape[1], dtype=values.dtype).index_add(0, mine.index, values)
    total = torch.zeros(count, count, dtype=values.dtype).index_add(1, other.index, total)
    return Gradient(Dense(total + total.T), evidence=gradient.evidence)
