"""What ops without a closed form have in common: they are evaluated on draws, which somebody else makes.

An op says what draws mean for the states before and behind it. Who draws, and how many, is bound to it as `draws`: the
interpreter replays the model's own functions on numbers drawn from predicted states.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any, Protocol, TypeVar

from sigprop.theory.ops.base import Law, Op, ParameterState, ReceivedByDraws
from sigprop.theory.states import Gradient, Signal

Self = TypeVar("Self", bound="DrawnOp")


class OpDraws(Protocol):
    """Who draws. `received` is what arrived, going backward, at the sources of what was drawn; None before that."""

    @property
    def received(self) -> ReceivedByDraws | None: ...

    def bound(self, states: Any) -> OpDraws:
        """The same draws from the states and laws of an evaluation; itself if they are these."""
        ...


class DrawnOp(Op):
    """An op with inputs that are the sources of what is drawn (and values, if it takes some beside)."""

    draws: Any
    _sent: tuple[Gradient, Gradient | None] | None = None

    def bound(self: Self, states: Any, node: Any) -> Self:
        draws = self.draws.bound(states)
        if draws is self.draws:
            return self
        made = copy(self)
        made.draws, made._sent = draws, None
        return made

    @property
    def received(self) -> ReceivedByDraws | None:
        return self.draws.received

    def with_law(self: Self, parameter: str, law: Law) -> Self:
        """Weights are drawn, by whatever their laws are then."""
        return self

    @abstractmethod
    def _send(self, gradient: Gradient, *inputs: Signal) -> Gradient | None:
        """Send a gradient back through draws; returns that of an input which is no source of these."""

    def sent(self, gradient: Gradient, *inputs: Signal) -> tuple[ReceivedByDraws, Gradient | None]:
        """What the draws have received of a gradient, and what `_send` returned: sent once for weights and inputs."""
        if self._sent is None or self._sent[0] is not gradient:
            self._sent = (gradient, self._send(gradient, *inputs))
        assert self.received is not None
        return self.received, self._sent[1]

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        """Of the weights that were drawn; numbered, since they have no names here."""
        return self.sent(gradient, *inputs)[0].states()
