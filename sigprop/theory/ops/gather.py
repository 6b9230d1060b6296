"""Slices, permutations and repeats of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import matrix
from sigprop.theory.kernels import Dense, Kernel
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    KEPT,
    Directions,
    Gradient,
    Number,
    Signal,
)


@dataclass(frozen=True, eq=False)
class Scatter(Op):
    """`y_index(p) = x_p`, zero elsewhere; entries that meet add. The adjoint of `Gather`.

    Forward   `K_y[t,t'] = sum of K_x[p,p'] over the entries p that meet in t and p' in t'`
    Backward  `G_x[p,p'] = G_y[index(p), index(p')]`; `B` and `H` likewise

    Exact.
    """

    carries = ALL_TRANSFORMED.but(fluctuation=KEPT, common=KEPT, directions=KEPT)

    index: Tensor
    positions: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, mean = (scattered(item, self.index, self.positions) for item in (x.kernel.values, x.mean))
        return self.carries.signal(x, Dense(kernel), mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        """Where entries meet, their gradients lean to each other's entries: a slope is no longer diagonal."""
        meet = len(self.index.unique()) < len(self.index)
        through, along = gradient.through_activation, gradient.along_signal.moved(matrix if meet else lambda item: item)
        made = self.carries.gradient(
            gradient,
            self._taken(gradient.kernel),
            along_signal=along.moved(lambda values: taken(values, self.index)),
            through_activation=through.collected(output) if meet else through.moved(self._taken),
        )
        return (made,)

    def _taken(self, kernel: Kernel) -> Dense:
        return Dense(taken(kernel.values, self.index))

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        """Positions that nothing is written to hold none of it; where entries meet, the last is followed."""
        source = torch.full((self.positions,), -1, dtype=torch.long)
        source[self.index] = torch.arange(len(self.index))
        return Carried((source >= 0).double(), source.clamp_min(0))


def taken(values: Tensor, index: Tensor) -> Tensor:
    """Numbers at some positions, or at their pairs."""
    return values[index] if values.ndim == 1 else values[index][:, index]


def scattered(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Positions, or their pairs, added up where they are sent to."""
    rows = torch.zeros(size, *values.shape[1:], dtype=values.dtype).index_add(0, index, values)
    return rows if values.ndim == 1 else torch.zeros(size, size, dtype=values.dtype).index_add(1, index, rows)


@dataclass(frozen=True, eq=False)
class Gather(Op):
    """`y_p = x_index(p)`: slices, permutations and repeats of positions.

    Forward   `K_y[p,p'] = K_x[index(p), index(p')]`
    Backward  `G_x[t,t'] = sum of G_y[p,p'] over the copies p of t and p' of t'`; `B` and `H` likewise

    Exact, but for `copies`.
    `copies`: each entry of `x` also feeds that many channels, whose gradients add as independent; of a gradient across
    `y` less, the fewer entries there are, since each moves its part of `y` along itself.
    """

    carries = ALL_TRANSFORMED

    index: Tensor
    copies: float = 1.0
    width: int | None = None

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, width = Dense(taken(x.kernel.values, self.index)), self.width or x.width
        repeats = max(1.0, width / x.width)
        common = x.common if repeats == 1.0 else replace(x.common, uniform=x.common.uniform * repeats)
        fluctuation = x.fluctuation if repeats == 1.0 else x.fluctuation.scaled(repeats)
        return self.carries.signal(x, kernel, x.mean[self.index], width, fluctuation=fluctuation, common=common)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        def back(values: Tensor) -> Tensor:
            return scattered(values, self.index, len(inputs[0].mean)) * self.copies

        left, directions = self._turned(gradient.directions, inputs[0].width)
        made = self.carries.gradient(
            gradient,
            Dense(back(gradient.kernel.values) * left),
            directions=directions,
            along_signal=gradient.along_signal.moved(back),
            through_activation=gradient.through_activation.moved(lambda item: Dense(back(item.values)), self.copies),
        )
        return (made,)

    def _turned(self, before: Directions, entries: int) -> tuple[Number, Directions]:
        """What the sums over copies keep of the energy, and the directions of what arrives."""
        if self.copies == 1.0 or (not isinstance(before.radial, Tensor) and before.radial == 1.0):
            return 1.0, before
        left = torch.as_tensor(before.along_part(min(1.0, before.groups / entries))).clamp_min(1e-300)
        return left, Directions(before.radial / left if before.groups == 1 else 1.0, before.uniform)

    @property
    def picks(self) -> Tensor:
        return self.index

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(1.0, self.index)
