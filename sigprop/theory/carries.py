"""What an op says it does with every part of a state.

Every op declares for each part (see `parts`) one of three things, in its own class, where its equations are:

- `KEPT`: the output has it as the (first) input has it;
- `TRANSFORMED`: the op computes it;
- `ended(reason)`: it starts afresh behind the op, and why.

`Carries` is that declaration. It also makes the op's states, so that what is declared is what happens: a part that is
transformed must be given, and no other may be. A class with a `forward` or a `backward` of its own and without a
declaration of its own cannot be defined (see `Op`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.parts import AlongSignal, Common, Directions, Fluctuation, ThroughActivation
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Evidence

SIGNAL_PARTS: dict[str, type] = {"fluctuation": Fluctuation, "common": Common}
GRADIENT_PARTS: dict[str, type] = {
    "directions": Directions,
    "along_signal": AlongSignal,
    "through_activation": ThroughActivation,
}


@dataclass(frozen=True)
class Passage:
    """What an op does with one part."""

    kind: str
    reason: str = ""


KEPT = Passage("kept")
TRANSFORMED = Passage("transformed")


def ended(reason: str) -> Passage:
    """The part starts afresh behind the op."""
    return Passage("ended", reason)


@dataclass(frozen=True, kw_only=True)
class Carries:
    """What an op does with each part of a state; it makes the op's states accordingly."""

    fluctuation: Passage
    common: Passage
    directions: Passage
    along_signal: Passage
    through_activation: Passage

    def signal(
        self,
        x: Signal,
        kernel: Kernel,
        mean: Tensor,
        width: int | None = None,
        evidence: Evidence | None = None,
        **transformed: Any,
    ) -> Signal:
        """The output of an op on `x`; width and evidence are those of `x` unless given."""
        parts = self._parts(SIGNAL_PARTS, x, transformed)
        return Signal(kernel, mean, width or x.width, evidence=evidence or x.evidence, **parts)

    def gradient(
        self, gradient: Gradient, kernel: Kernel, evidence: Evidence | None = None, **transformed: Any
    ) -> Gradient:
        """The gradient at an input of an op, given that at its output."""
        parts = self._parts(GRADIENT_PARTS, gradient, transformed)
        return Gradient(kernel, evidence=evidence or gradient.evidence, **parts)

    def _parts(self, kinds: dict[str, type], state: Signal | Gradient, given: dict[str, Any]) -> dict[str, Any]:
        made = dict(given)
        for name, kind in kinds.items():
            passage: Passage = getattr(self, name)
            if (passage is TRANSFORMED) != (name in given):
                came = "given" if name in given else "not given"
                raise TypeError(f"the part {name!r} of a state is declared {passage.kind}, and it was {came}")
            if passage is not TRANSFORMED:
                made[name] = getattr(state, name) if passage is KEPT else kind()
        return made


def starts(reason: str) -> Carries:
    """The declaration of an op without inputs."""
    begin, no_input = ended(reason), ended("there is no input to send a gradient to")
    return Carries(
        fluctuation=begin, common=begin, directions=no_input, along_signal=no_input, through_activation=no_input
    )
