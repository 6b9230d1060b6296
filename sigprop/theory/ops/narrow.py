"""A slice of the channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    Fluctuation,
    Gradient,
    Number,
    Signal,
)


@dataclass(frozen=True, eq=False)
class Narrow(Op):
    """A slice of `width` channels, or all groups of channels from one that stands for them.

    Forward   `K_y = K_x`
    Backward  `G_x = share G_y`: spread over all channels

    Of `part` of the channels, what all of them have in common remains: `norm` is `2 + (v - 2) part`, which is
    `2 (1 - part)` for a slice of a normalized vector, `pair` is `1 + (v - 1) part`; the all-ones direction of the slice
    is `part` that of the whole. Widening (one group stands for all) leaves the norm as it is: groups are independent.
    Where one group stands for all, what its gradient has along it each of them has along itself.
    Exact for exchangeable channels.
    """

    carries = ALL_TRANSFORMED

    keeps_channels = False

    by_position = True

    share: float
    width: int
    of_groups: int = 1
    """Groups of channels of which this is one."""
    norm: float | None = None
    """The fluctuation of norms of a group, where it was seen."""
    taken: tuple[int, ...] = ()
    """Which channels: the dimension they are in, and the range there."""

    def bound(self, states: Any, node: Any) -> Narrow:
        if self.of_groups == 1:
            return self
        return replace(self, norm=states.op(node.inputs[0]).norm_of_groups(self.of_groups))

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        part, before = self.width / x.width, x.fluctuation
        kept = min(part, 1.0)
        fluctuation = Fluctuation(
            self._norm(before.norm, (self.width + 2) / (x.width + 2) if part < 1.0 else 1.0),
            1.0 + (before.pair - 1.0) * part,
            before.pair_inherited * part,
        )
        common = replace(x.common, uniform=1.0 + (x.common.uniform - 1.0) * kept)
        return self.carries.signal(x, x.kernel, x.mean, self.width, fluctuation=fluctuation, common=common)

    def _norm(self, before: Number, kept: float) -> Number:
        if self.norm is not None:
            return self.norm
        return 2.0 + (before - 2.0) * kept if kept < 1.0 else before

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        stands = self.share == 1.0 and self.width < inputs[0].width
        groups = gradient.directions.groups * (inputs[0].width // self.width) if stands else 1
        made = self.carries.gradient(
            gradient,
            gradient.kernel.scale(self.share),
            directions=replace(gradient.directions, groups=groups),
            along_signal=gradient.along_signal.moved(lambda values: values * self.share),
            through_activation=gradient.through_activation.moved(lambda item: item.scale(self.share), self.share),
        )
        return (made,)

    @property
    def picks(self) -> slice:
        return slice(None)

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(1.0)
