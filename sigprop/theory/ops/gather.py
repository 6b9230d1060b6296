"""Slices, permutations and repeats of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    KEPT,
    AlongSignal,
    Directions,
    Gradient,
    Number,
    Signal,
    ThroughActivation,
)


@dataclass(frozen=True, eq=False)
class Scatter(Op):
    """`y_index(p) = x_p`, zero elsewhere; entries that meet add. The adjoint of `Gather`.

    Forward   `K_y[t,t'] = sum of K_x[p,p'] over the entries p that meet in t and p' in t'`
    Backward  `G_x[p,p'] = G_y[index(p), index(p')]`; `B` and `H` likewise
    """

    carries = ALL_TRANSFORMED.but(fluctuation=KEPT, common=KEPT, directions=KEPT)

    index: Tensor
    positions: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = Dense(scattered(x.kernel.values, self.index, self.positions))
        mean = torch.zeros(self.positions, dtype=x.mean.dtype).index_add(0, self.index, x.mean)
        return self.carries.signal(x, kernel, mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        along, through = gradient.along_signal, gradient.through_activation
        moved = AlongSignal(self._back(along.slope), self._back(along.rest))
        if self._meets:
            through = through.collected(output)
        else:
            below = tuple(
                replace(item, kernel=self._taken(item.kernel.values), passed=self._taken(item.passed.values))
                for item in through.gradients
            )
            through = ThroughActivation(below, through.gain_excess)
        kernel = self._taken(gradient.kernel.values)
        return (self.carries.gradient(gradient, kernel, along_signal=moved, through_activation=through),)

    @property
    def _meets(self) -> bool:
        return len(self.index.unique()) < len(self.index)

    def _taken(self, values: Tensor) -> Dense:
        return Dense(values[self.index][:, self.index])

    def _back(self, values: Tensor | float) -> Tensor | float:
        """A slope that is diagonal stays so, unless entries met: their gradients lean to each other's entries."""
        if not isinstance(values, Tensor):
            return values
        if values.ndim == 1 and not self._meets:
            return values[self.index]
        values = torch.diag(values) if values.ndim == 1 else values
        return values[self.index][:, self.index]

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        """Positions that nothing is written to hold none of it; where entries meet, the last is followed."""
        source = torch.full((self.positions,), -1, dtype=torch.long)
        source[self.index] = torch.arange(len(self.index))
        return Carried((source >= 0).double(), source.clamp_min(0))


def scattered(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Pairs of positions added up where they are sent to."""
    rows = torch.zeros(size, values.shape[1], dtype=values.dtype).index_add(0, index, values)
    return torch.zeros(size, size, dtype=values.dtype).index_add(1, index, rows)


@dataclass(frozen=True, eq=False)
class Gather(Op):
    """`y_p = x_index(p)`: slices, permutations and repeats of positions.

    Forward   `K_y[p,p'] = K_x[index(p), index(p')]`
    Backward  `G_x[t,t'] = sum of G_y[p,p'] over the copies p of t and p' of t'`; `B` and `H` likewise

    `copies`: each entry of `x` also feeds that many channels, whose gradients add as independent; of a gradient across
    `y` less, the fewer entries there are, since each moves its part of `y` along itself.
    """

    carries = ALL_TRANSFORMED

    index: Tensor
    copies: float = 1.0
    width: int | None = None

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, width = Dense(x.kernel.values[self.index][:, self.index]), self.width or x.width
        repeats = max(1.0, width / x.width)
        common = x.common if repeats == 1.0 else replace(x.common, uniform=x.common.uniform * repeats)
        fluctuation = x.fluctuation if repeats == 1.0 else x.fluctuation.scaled(repeats)
        return self.carries.signal(x, kernel, x.mean[self.index], width, fluctuation=fluctuation, common=common)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        size = len(inputs[0].mean)
        left, directions = self._turned(gradient.directions, inputs[0].width)
        kernel = Dense(scattered(gradient.kernel.values, self.index, size) * (self.copies * left))
        along, through = gradient.along_signal, gradient.through_activation
        moved = AlongSignal(self._back(along.slope, size), self._back(along.rest, size))
        below = tuple(
            replace(
                item,
                kernel=Dense(scattered(item.kernel.values, self.index, size) * self.copies),
                passed=Dense(scattered(item.passed.values, self.index, size) * self.copies),
            )
            for item in through.gradients
        )
        through = ThroughActivation(below, through.gain_excess * self.copies)
        parts = {"directions": directions, "along_signal": moved, "through_activation": through}
        return (self.carries.gradient(gradient, kernel, **parts),)

    def _turned(self, before: Directions, entries: int) -> tuple[Number, Directions]:
        """What the sums over copies keep of the energy, and the directions of what arrives."""
        if self.copies == 1.0 or (not isinstance(before.radial, Tensor) and before.radial == 1.0):
            return 1.0, before
        left = torch.as_tensor(before.along_part(min(1.0, before.groups / entries))).clamp_min(1e-300)
        return left, Directions(before.radial / left if before.groups == 1 else 1.0, before.uniform)

    def _back(self, values: Tensor | float, size: int) -> Tensor | float:
        if not isinstance(values, Tensor):
            return values
        if values.ndim > 1:
            return scattered(values, self.index, size) * self.copies
        return torch.zeros(size, dtype=values.dtype).index_add(0, self.index, values) * self.copies

    @property
    def picks(self) -> Tensor:
        return self.index

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(1.0, self.index)
