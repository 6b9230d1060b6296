"""Sequences longer than theory follows, in models small enough to be run: simulated as far as that is affordable.

Two initializations at the full length, where they cost no more than `OPERATIONS`: rows are then `sampled`. Else the
same two weights at the longest affordable length and at half of it, continued from there as theory is from 64 and 128
tokens (`trace.length`): rows stay `assumed`, from lengths that are closer.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sigprop.losses import LossChoice
from sigprop.results import Profile
from sigprop.simulate import Simulation
from sigprop.trace.inputs import shortened
from sigprop.trace.length import continued

OPERATIONS = 7e11
"""Of all passes: about ten seconds of two cores."""
DRAWS = 2
COUNTED = (64, 128, 256)


def simulated_at_length(
    found: Profile, model: nn.Module, batch: Any, loss: LossChoice, seed: int, length: int
) -> Profile:
    """The profile with what the real model shows at its length, or near it."""
    longest = _affordable(model, batch, loss, seed, length)
    if longest < COUNTED[-1]:
        return found
    whole = _simulated(model, shortened(batch, longest)[0], loss, seed)
    if longest == length:
        note = f"simulated with {DRAWS} initializations: {length} tokens are more than theory follows"
    else:
        whole = continued(_simulated(model, shortened(batch, longest // 2)[0], loss, seed), whole, longest, length)
        note = f"continued from simulations of {longest // 2} and {longest} tokens to {length}"
    sites = _replaced(found.sites, whole.sites, note)
    meta = found.meta | {"tokens": note, "verification": {"draws": DRAWS, "tokens": longest}}
    return Profile(sites, _replaced(found.parameters, whole.parameters, note), meta)


def _simulated(model: nn.Module, batch: Any, loss: LossChoice, seed: int) -> Profile:
    simulation = Simulation(model, batch, loss, seed)
    simulation.extend(DRAWS)
    return simulation.summary()


def _affordable(model: nn.Module, batch: Any, loss: LossChoice, seed: int, length: int) -> int:
    """The longest length, halved as often as need be, that may be run: operations are quadratic in it."""
    costs = []
    for tokens in COUNTED:
        simulation = Simulation(model, shortened(batch, tokens)[0], loss, seed)
        simulation.extend(1)
        costs.append(simulation.operations)
    (a, b, c), (x, y, z) = COUNTED, costs
    bend = ((z - y) / (c - b) - (y - x) / (b - a)) / (c - a)
    slope = (y - x) / (b - a) - bend * (a + b)

    def cost(tokens: int) -> float:
        return DRAWS * (x + slope * (tokens - a) + max(bend, 0.0) * (tokens**2 - a**2))

    if cost(length) <= OPERATIONS:
        return length
    tokens = COUNTED[-1] // 2
    while 4 * tokens <= length and cost(2 * tokens) + cost(tokens) <= OPERATIONS:
        tokens *= 2
    return tokens


def _replaced(rows: list[Any], simulated: list[Any], note: str) -> list[Any]:
    named = {row.name: row for row in simulated}
    made = []
    for row in rows:
        real = named.get(row.name)
        if real is None:
            made.append(row)
            continue
        real.reason = note
        made.append(real)
    return made
