"""Where branches begin."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sigprop.theory.carries import KEPT, TRANSFORMED, Carries
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class BranchOrigin(Op):
    """`y = x`, the tensor at which branches begin: what its pairs of tokens fluctuate by is inherited from nowhere.

    Forward   `K_y = K_x`
    Backward  `G_x = G_y`
    """

    carries = Carries(fluctuation=TRANSFORMED, common=KEPT, directions=KEPT, along_signal=KEPT, through_activation=KEPT)

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return self.carries.signal(x, x.kernel, x.mean, fluctuation=replace(x.fluctuation, pair_inherited=0.0))

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (self.carries.gradient(gradient, gradient.kernel),)

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(1.0)
