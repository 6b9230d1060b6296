"""The sum of what chosen experts give."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.corrections.along_signal import weighted
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op, joined_evidence
from sigprop.theory.states import ALL_TRANSFORMED, AlongSignal, Directions, Fluctuation, Gradient, Signal, ended


@dataclass(frozen=True)
class ExpertSum(Op):
    """`z_t = sum_e w_te y_te` over experts `e` with weights of their own, `w_te = 0` for those not chosen.

    `y` is the state of one expert on all tokens, `w` that of the shares, a channel for every expert.

    Forward   `K_z = M K_y`, `M[t,s] = E sum_e w_te w_se = experts K_w[t,s]`
    Backward  `G_y = M G_z`, the sum over all experts; `G_w = width G_z K_y`, less what is not along `z`, of which one
              expert brings its part; the slope along the signal like `G_y`

    Exact where outputs of different experts are independent and have mean zero, as fresh weights without bias make
    them. Of the squared norm of `z` one expert brings the part `1 / chosen`; `sum_e w_te^2`, by which it is multiplied,
    varies as the squared norm of the shares does.
    """

    carries = ALL_TRANSFORMED.but(
        common=ended("channels are made by the independent weights of several experts"),
        through_activation=ended("a function of a sum is no function of one summand"),
    )

    chosen: int

    def forward(self, *inputs: Signal) -> Signal:
        y, shares = inputs
        kernel, evidence = Dense(y.kernel.values * self._overlap(shares)), joined_evidence(y, shares)
        own, part = y.fluctuation, 1.0 / self.chosen
        spread = shares.fluctuation.norm / shares.width
        fluctuation = Fluctuation(
            2.0 + (own.norm - 2.0) * part + y.width * spread, 1.0 + (own.pair - 1.0) * part, own.pair_inherited * part
        )
        return self.carries.signal(y, kernel, y.mean, evidence=evidence, fluctuation=fluctuation)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient]:
        y, shares = inputs
        overlap, slope, part = self._overlap(shares), gradient.along_signal.slope, 1.0 / self.chosen
        to_expert = self.carries.gradient(
            gradient,
            Dense(gradient.kernel.values * overlap),
            directions=replace(gradient.directions.at_part(part), uniform=1.0, groups=1),
            along_signal=AlongSignal(weighted(slope, overlap)),
        )
        to_shares = self.carries.gradient(
            gradient,
            Dense(gradient.kernel.values * y.kernel.values * y.width * gradient.directions.along_part(part)),
            directions=Directions(),
            along_signal=AlongSignal(),
        )
        return to_expert, to_shares

    @staticmethod
    def _overlap(shares: Signal) -> Tensor:
        return shares.kernel.values * shares.width
