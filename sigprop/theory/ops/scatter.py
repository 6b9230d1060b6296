"""Positions written into a larger set of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.parts import AlongSignal, ThroughActivation
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class Scatter(Op):
    """`y_index(p) = x_p`, zero elsewhere; entries that meet add. The adjoint of `Gather`.

    Forward   `K_y[t,t'] = sum of K_x[p,p'] over the entries p that meet in t and p' in t'`
    Backward  `G_x[p,p'] = G_y[index(p), index(p')]`; `B` and `H` likewise
    """

    carries = Carries(
        fluctuation=KEPT,
        common=KEPT,
        directions=KEPT,
        along_signal=TRANSFORMED,
        through_activation=TRANSFORMED,
    )

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
