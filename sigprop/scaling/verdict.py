"""Who is guilty: from failing exponents to the parameter or multiplier that causes them.

A weight whose size has the wrong exponent is a wrong initialization; one whose first update has the wrong
exponent, a wrong learning rate. Where sites fail and every weight and update is as expected, a forward
multiplier is missing or wrong: at the attention whose scores grow, or at the first site that fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from sigprop.results.coordinates import Culprit, Exponent


def find_culprits(exponents: list[Exponent], modules: Sequence[str]) -> list[Culprit]:
    """The culprits, largest deviation first; parameters before multipliers. `modules`: names in forward order."""
    failing = [item for item in exponents if not item.passed]
    named = [
        Culprit(item.name, "init" if item.quantity == "weight" else "learning rate", item.deviation(), item.axis)
        for item in failing
        if item.quantity in ("weight", "update", "rate")
    ]
    if named:
        return sorted(named, key=lambda culprit: -abs(culprit.exponent))
    scores = [item for item in failing if item.name.endswith(".scores")]
    if scores:
        return [
            Culprit(item.name.removesuffix(".scores"), "attention scale", item.deviation(), item.axis)
            for item in scores[-1:]
        ]
    order = {name: place for place, name in enumerate(modules)}
    sites = sorted(failing, key=lambda item: (order.get(item.name, len(order)), item.step))
    return [Culprit(item.name, "forward multiplier", item.deviation(), item.axis) for item in sites[:1]]
