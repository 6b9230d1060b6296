"""Who is guilty: from failing exponents to the parameter or multiplier that causes them.

A weight whose size has the wrong exponent is a wrong initialization; one whose first update has the wrong
exponent, a wrong learning rate. Where sites fail and every weight and update is as expected, a forward
multiplier is missing or wrong: at the attention whose scores grow, or at the first site that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from sigprop.results.coordinates import Culprit, Exponent

CAUSES = {"weight": "init", "update": "learning rate", "rate": "learning rate", "decay": "weight decay"}


def find_culprits(
    exponents: list[Exponent], modules: Sequence[str], queries: Mapping[str, str] | None = None
) -> list[Culprit]:
    """The culprits, largest deviation first; parameters before multipliers. `modules`: names in the order in
    which they end.

    `queries`: parameters that carry an attention's 1/d, with their attention. Where the size of such a parameter and of
    its update are both off, and nothing else is, the attention's scale is what is missing.
    """
    failing = [item for item in exponents if not item.passed]
    named = [
        Culprit(item.name, CAUSES[item.quantity], item.deviation(), item.axis)
        for item in failing
        if item.quantity in CAUSES
    ]
    named = _attention_scales(named, queries or {}) or named
    if named:
        return sorted(named, key=lambda culprit: -abs(culprit.exponent))
    order = {name: place for place, name in enumerate(modules)}
    sites = sorted(failing, key=lambda item: (order.get(item.name, len(order)), item.step))
    scores = [item for item in failing if item.name.endswith(".scores")]
    if scores and not _starts_before(sites[0], scores[0].name.removesuffix(".scores"), order):
        return [
            Culprit(item.name.removesuffix(".scores"), "attention scale", item.deviation(), item.axis)
            for item in scores[-1:]
        ]
    return [Culprit(item.name, "forward multiplier", item.deviation(), item.axis) for item in sites[:1]]


def _starts_before(item: Exponent, attention: str, order: Mapping[str, int]) -> bool:
    """Whether a site that ends before an attention begins is off from the start, so that its scores follow it."""
    early = order.get(item.name, len(order)) < order.get(attention, 0) and not item.name.startswith(f"{attention}.")
    return early and (item.quantity, item.step) == ("activation", 0)


def in_order_of_ending(model: nn.Module, name: str = "") -> list[str]:
    """Names of all modules, those that hold others after them."""
    inside = [(f"{name}.{key}".lstrip("."), module) for key, module in model.named_children()]
    return [*(found for key, module in inside for found in in_order_of_ending(module, key)), name]


def _attention_scales(named: list[Culprit], queries: Mapping[str, str]) -> list[Culprit]:
    """The attentions behind draws and rates of queries that are both off; none if anything else is.

    A bias of zeros has no draw to be off, so that its rate alone tells nothing against it.
    """
    if not named or any(item.name not in queries or item.cause == "weight decay" for item in named):
        return []
    owners = dict.fromkeys(queries[item.name] for item in named)
    found = []
    for owner in owners:
        own = [item for item in named if queries[item.name] == owner]
        draws = [item for item in own if item.cause == "init"]
        if not draws or len(draws) == len(own):
            return []
        found.append(Culprit(owner, "attention scale", _carried(draws), draws[0].axis))
    return found


def _carried(draws: list[Culprit]) -> float:
    """The exponent of the scale: that of the queries' draw; of a fused matrix and the output weight, both halves."""
    up = [item.exponent for item in draws if item.exponent > 0]
    down = [-item.exponent for item in draws if item.exponent <= 0]
    return sum(max(half, default=0.0) for half in (up, down)) * (1.0 if up else -1.0)
