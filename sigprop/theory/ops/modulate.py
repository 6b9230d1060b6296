"""Numbers that multiply a tensor entry by entry."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.corrections.along_signal import weighted
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import ALL_TRANSFORMED, KEPT, AlongSignal, Gradient, Signal


class Factors(Op):
    """What multiplies a tensor entry by entry, unrelated to it.

    Forward   `K_y = K_x E[c c']`
    Backward  `G_x = G_y E[c c']`, the slope likewise; of what is uniform over channels the part `even` stays
    """

    carries = ALL_TRANSFORMED.but(fluctuation=KEPT)

    mean: Tensor | float

    @property
    @abstractmethod
    def factor(self) -> Tensor:
        """`E[c c']` of pairs of positions."""

    @property
    @abstractmethod
    def even(self) -> Tensor | float:
        """How uniform they are over channels: `(E c)^2 / E c^2`."""

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        common = replace(x.common, uniform=1.0 + (x.common.uniform - 1.0) * self.even)
        return self.carries.signal(x, Dense(x.kernel.values * self.factor), x.mean * self.mean, common=common)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        directions, along, factor = gradient.directions, gradient.along_signal, self.factor
        moved = weighted(along.slope, factor) if isinstance(along.slope, Tensor) else 0.0
        made = self.carries.gradient(
            gradient,
            Dense(gradient.kernel.values * factor),
            directions=replace(directions, uniform=1.0 + (directions.uniform - 1.0) * self.even),
            along_signal=AlongSignal(moved, along.rest),
            through_activation=gradient.through_activation.collected(output),
        )
        return (made,)

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(self.mean)


@dataclass(frozen=True, eq=False)
class Modulate(Factors):
    """`y = c * x` with fixed numbers `c`, given by their kernel and mean over channels; also masks of 0 and 1.

    Forward   as `Factors`
    Backward  likewise
    """

    kernel: Tensor
    mean: Tensor  # type: ignore[assignment]

    @property
    def factor(self) -> Tensor:
        return self.kernel

    @property
    def even(self) -> Tensor:
        return self.mean.square().sum() / self.kernel.diagonal().sum().clamp_min(1e-300)
