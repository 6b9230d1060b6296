"""Numbers that multiply a tensor entry by entry."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.corrections.along_signal import weighted
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import ALL_TRANSFORMED, AlongSignal, Fluctuation, Gradient, Signal


class Factors(Op):
    """What multiplies a tensor entry by entry, unrelated to it.

    Forward   `K_y = K_x E[c c']`; with `u = E c^4 / (E c^2)^2` over channels `norm` grows by `3 (u - 1)`, `pair` by
              `u - 1`
    Backward  `G_x = G_y E[c c']`, the slope likewise, and `rest` stays: `x_s (c r_t) = y_s r_t`; of what is uniform
              over channels the part `even` stays
    """

    carries = ALL_TRANSFORMED

    mean: Tensor | float

    @abstractmethod
    def square(self, kernel: Kernel) -> Tensor | float:
        """`E[c c']` for the pairs of a kernel."""

    @property
    def unevenness(self) -> float:
        """How much their squares vary over channels: `E c^4 / (E c^2)^2`; so many channels count as one."""
        return 1.0

    @property
    def even(self) -> Tensor | float:
        """How uniform they are over channels: `(E c)^2 / E c^2`."""
        return 1.0

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = x.kernel.like(x.kernel.values * self.square(x.kernel))
        common = replace(x.common, uniform=1.0 + (x.common.uniform - 1.0) * self.even)
        more, part = self.unevenness - 1.0, x.fluctuation
        fluctuation = Fluctuation(part.norm + 3.0 * more, part.pair + more, part.pair_inherited)
        return Factors.carries.signal(x, kernel, x.mean * self.mean, fluctuation=fluctuation, common=common)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None]:
        directions, along, square = gradient.directions, gradient.along_signal, self.square(gradient.kernel)
        made = Factors.carries.gradient(
            gradient,
            gradient.kernel.like(gradient.kernel.values * square),
            directions=replace(directions, uniform=1.0 + (directions.uniform - 1.0) * self.even),
            along_signal=AlongSignal(weighted(along.slope, square), along.rest),
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

    def square(self, kernel: Kernel) -> Tensor:
        return self.kernel

    @property
    def even(self) -> Tensor:
        return self.mean.square().sum() / self.kernel.diagonal().sum().clamp_min(1e-300)
