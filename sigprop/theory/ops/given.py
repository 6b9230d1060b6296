"""A tensor that is given: numbers of the input, or a state that a chain starts from."""

from __future__ import annotations

from dataclasses import dataclass

from sigprop.theory.carries import starts
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True, eq=False)
class GivenSignal(Op):
    """A tensor that no op of the chain made.

    Forward   `K` and mean as given
    Weights   none

    It has no input: the signal starts here. Exact.
    """

    carries = starts("what is given has the parts that it was given with")

    signal: Signal

    def forward(self, *inputs: Signal) -> Signal:
        return self.signal

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[()]:
        return ()
