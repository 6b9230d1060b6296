"""Sequences longer than theory follows, in models small enough to be run: simulated as far as that is affordable.

Two initializations at the full length, where they cost no more than `OPERATIONS`: rows are then `simulated`, and theory
is not asked. Else the same two weights at the longest affordable length and at half of it, continued from there as
theory is from 64 and 128 tokens (`trace.length`): rows stay `assumed`, from lengths that are closer.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sigprop.batches import shortened
from sigprop.capture.long_contexts import continued
from sigprop.losses import LossChoice
from sigprop.results import Profile
from sigprop.verification import Simulation

OPERATIONS = 7e11
"""Of all passes: about ten seconds of two cores."""
DRAWS = 2
COUNTED = (128, 256)


class LongContext:
    """A model on sequences of one length, and the longest that may be run."""

    def __init__(self, model: nn.Module, batch: Any, loss: LossChoice, seed: int, length: int):
        self._model, self._batch, self._loss, self._seed = model, batch, loss, seed
        self.length = length
        self.longest = self._affordable()

    def simulated(self) -> Profile | None:
        """What the real model shows at its length; None where that costs too much."""
        if self.longest < self.length:
            return None
        return self._noted(self._at(self.length), f"{self.length} tokens are more than theory follows")

    def continued(self, found: Profile) -> Profile:
        """Theory's profile with what the real model shows near its length."""
        if self.longest < COUNTED[-1]:
            return found
        half = self.longest // 2
        near = continued(self._at(half), self._at(self.longest), self.longest, self.length)
        near = self._noted(near, f"continued from simulations of {half} and {self.longest} tokens to {self.length}")
        sites, parameters = _replaced(found.sites, near.sites), _replaced(found.parameters, near.parameters)
        return Profile(sites, parameters, found.meta | near.meta)

    def _at(self, tokens: int) -> Profile:
        simulation = Simulation(self._model, shortened(self._batch, tokens)[0], self._loss, self._seed)
        simulation.extend(DRAWS, counted=False)
        return simulation.summary()

    def _noted(self, profile: Profile, why: str) -> Profile:
        for row in (*profile.sites, *profile.parameters):
            row.reason = f"simulated with {DRAWS} initializations: {why}"
        profile.meta |= {"source": "predict", "tokens": why, "verification": {"draws": DRAWS, "tokens": self.longest}}
        return profile

    def _affordable(self) -> int:
        """The longest length, halved as often as need be, that may be run: operations are linear and square in it."""
        a, b = COUNTED
        one, other = (self._operations(tokens) for tokens in COUNTED)
        bend = max(other / b - one / a, 0.0) / (b - a)

        def cost(tokens: int) -> float:
            return DRAWS * tokens * (other / b + bend * (tokens - b))

        if cost(self.length) <= OPERATIONS:
            return self.length
        tokens = b // 2
        while 4 * tokens <= self.length and cost(2 * tokens) + cost(tokens) <= OPERATIONS:
            tokens *= 2
        return tokens

    def _operations(self, tokens: int) -> int:
        simulation = Simulation(self._model, shortened(self._batch, tokens)[0], self._loss, self._seed)
        return simulation.operations_of_a_pass()


def _replaced(rows: list[Any], simulated: list[Any]) -> list[Any]:
    named = {row.name: row for row in simulated}
    return [named.get(row.name, row) for row in rows]
