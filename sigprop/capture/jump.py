"""The state after several blocks that are not followed, from what the followed ones before do to it.

Signal    a block adds `v(j)` to every part of the state, which varies slowly with its number `j`: with a residual
          stream it is what the branch makes of the normalized stream. It is continued from the last two followed
          blocks in a straight line.
Gradient  a block multiplies it; the change of its logarithm, and of its shape, falls as `1 / (j + 1)` where the stream
          grows. `(j + 1) v(j)` is continued in a straight line from the next two followed blocks above.

Both are exact where `v` and `(j + 1) v` are straight. What is left out is of second order in the distance of followed
blocks over their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sigprop.capture.record import Uneven
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node
from sigprop.theory import Dense, Evidence, Gradient, Signal, Status
from sigprop.theory.corrections.along_signal import matrix
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    AlongSignal,
    Common,
    Directions,
    Fluctuation,
    ThroughActivation,
)

Parts = list[Tensor]
LARGEST_ERROR = 0.02
"""Of the kernel of a signal, or of the energy of a gradient, behind one jump, by what its landing shows."""
FITTED = Evidence(Status.FITTED, "of repeated blocks some are followed, and the state is continued between them")


@dataclass(frozen=True)
class FollowedBlock:
    """One of a run: its number, the nodes of the stream before and behind it."""

    number: int
    entered: Node
    left: Node

    def change(self, states: Evaluation) -> Parts:
        before, after = (parts(states.signal(node)) for node in (self.entered, self.left))
        return [now - then for now, then in zip(after, before, strict=True)]


@dataclass(eq=False)
class Jump(Op):
    """From behind `below[-1]` to before block `landing`; `above`, known later, are the blocks followed from there."""

    carries = ALL_TRANSFORMED

    below: tuple[FollowedBlock, FollowedBlock]
    landing: int
    above: list[FollowedBlock] = field(default_factory=list)
    states: Evaluation | None = None
    shares: tuple[Tensor, ...] = ()
    """What either block below holds behind it of the stream before it."""

    def bound(self, states: Evaluation, node: Node) -> Jump:
        return replace(self, states=states, shares=tuple(_share(states, block) for block in self.below))

    @property
    def gradients_read(self) -> list[Node]:
        return [node for block in (*self.below, *self.above) for node in (block.entered, block.left)]

    def forward(self, *inputs: Signal) -> Signal:
        (x,), (before, last) = inputs, self.below
        skipped = self.landing - last.number - 1
        ahead = skipped * (skipped + 1) / 2 / (last.number - before.number)
        assert self.states is not None
        changes = zip(parts(x), last.change(self.states), before.change(self.states), strict=True)
        made = [start + skipped * now + ahead * (now - then) for start, now, then in changes]
        kernel, mean, norm, pair, inherited, uniform, share, mixed = made
        return self.carries.signal(
            x,
            Dense(kernel),
            mean,
            evidence=x.evidence.join(FITTED),
            fluctuation=Fluctuation(norm.clamp_min(0.0), pair.clamp_min(1e-6), inherited.clamp_min(0.0)),
            common=Common(uniform.clamp_min(0.0), share.clamp(0.0, 1.0), mixed.clamp_min(0.0)),
        )

    def require_straight(self, states: Evaluation, landed: FollowedBlock) -> None:
        """Raise where the block after the jump does not change the kernel as it was continued."""
        if landed.number != self.landing:
            return
        before, last = self.below
        ahead = (self.landing - last.number) / (last.number - before.number)
        now, then, there = (block.change(states)[0] for block in (last, before, landed))
        bent = (there - now - ahead * (now - then)) * (self.landing - last.number - 1) / 2
        error = float(bent.norm() / states.signal(landed.entered).kernel.values.norm())
        _require(error)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        """The gradient below the skipped blocks; `output` is the signal above them."""
        first, second = self.above[:2]
        (signal,) = inputs
        here = gradient_parts(gradient, output)
        rates = [self._rate(block) for block in (first, second)]
        self._require_straight(rates)
        for number in range(first.number - 1, self.below[-1].number, -1):
            ahead = (first.number - number) / (second.number - first.number)
            changes = zip(here, *rates, strict=True)
            here = [at + (now + ahead * (now - then)) / (number + 1) for at, now, then in changes]
        log_level, shape, radial, uniform, response, slope, rest, excess = here
        level, size = log_level.exp(), signal.kernel.diagonal.mean()
        slope, rest = slope * (level / size).sqrt(), rest * (size * level).sqrt()
        found = self.carries.gradient(
            gradient,
            Dense(shape * level),
            gradient.evidence.join(FITTED),
            directions=Directions(radial, uniform, response=response),
            along_signal=AlongSignal(slope if slope.ndim else 0.0, rest if rest.ndim else 0.0),
            through_activation=ThroughActivation(gain_excess=excess * size * level),
        )
        return (found,)

    def _require_straight(self, rates: list[Parts]) -> None:
        """Raise where the energy above does not change at the last landing as it was continued."""
        if len(self.above) < 3 or self.above[1].number == self.above[0].number + 1:
            return
        (here, there, beyond), far = self.above[:3], float(self._rate(self.above[2])[0])
        ahead = (there.number - here.number) / (beyond.number - there.number)
        bent = float(rates[0][0]) - float(rates[1][0]) - ahead * (float(rates[1][0]) - far)
        _require(abs(bent) * (there.number - here.number - 1) / 2 / there.number)

    def _rate(self, block: FollowedBlock) -> Parts:
        """What a block changes in a gradient that passes down through it, times its number counted from one."""
        states = self.states
        assert states is not None
        below, above = (
            gradient_parts(states.gradient(node), states.signal(node)) for node in (block.entered, block.left)
        )
        return [(after - before) * (block.number + 1) for after, before in zip(below, above, strict=True)]

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried | None:
        before, last = self.shares
        return Carried(((before + last) / 2) ** (self.landing - self.below[-1].number - 1))


def _share(states: Evaluation, block: FollowedBlock) -> Tensor:
    held = states.shared_parts.pieces(block.left, {block.entered}).get(block.entered, [])
    return sum((piece.share for piece in held), start=torch.zeros(())).clamp_min(0.0)


def _require(error: float) -> None:
    if not error <= LARGEST_ERROR:
        raise Uneven(f"blocks change too fast to be continued: by {error:.1%} otherwise than continued")


# -- states as lists of tensors


def parts(signal: Signal) -> Parts:
    return [
        signal.kernel.values,
        signal.mean,
        *map(_number, (*vars(signal.fluctuation).values(), *vars(signal.common).values())),
    ]


def gradient_parts(gradient: Gradient, signal: Signal) -> Parts:
    """Logarithm of the energy, and all else without units."""
    level, size = gradient.energy(), signal.kernel.diagonal.mean()
    if not float(level) > 0.0:
        raise Uneven("no gradient arrives")
    along, directions = gradient.along_signal, gradient.directions
    slope = matrix(along.slope) if isinstance(along.slope, Tensor) else _number(along.slope)
    return [
        level.log(),
        gradient.kernel.values / level,
        _number(directions.radial),
        _number(directions.uniform),
        _number(directions.response),
        slope * (size / level).sqrt(),
        _number(along.rest) / (size * level).sqrt(),
        _number(gradient.through_activation.collected(signal).gain_excess) / (size * level),
    ]


def _number(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)
