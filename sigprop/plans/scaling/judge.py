"""From recorded sizes to exponents with a verdict on each, and from failing exponents to what causes them.

A weight whose size has the wrong exponent is a wrong initialization; one whose first update has the wrong
exponent, a wrong learning rate. Where sites fail and every weight and update is as expected, a forward
multiplier is missing or wrong: at the attention whose scores grow, or at the first site that fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from torch import nn

from sigprop.plans.scaling.expectations import Expectations, error_of_two_parts, fit_exponents
from sigprop.plans.scaling.record import RecordedRun
from sigprop.results.coordinates import Culprit, Exponent

ROUNDING = 1e-6
PARAMETER_SIZES = ("weight", "update", "rate", "gradient", "decay")


def judge(
    tables: list[list[RecordedRun]],
    axis: str,
    expected: Expectations,
    tolerance: float,
    level: float = 0.95,
    queries: Collection[str] = (),
) -> list[Exponent]:
    """Fit every recorded quantity over the builds (`tables[build][seed]`) and compare it with the rule's exponent.

    `queries`: parameters that carry an attention's 1/d.
    A change that is no power of width as expected may be one of two parts, aligned and random; then the
    expected exponent, that of large width, is only a bound from above. So is the power by which the scores of an
    attention may move, for everything that follows it: a pattern that moves more moves what it mixes.
    """
    if axis == "depth":
        tables = [[run.by_pattern() for run in table] for table in tables]
    everywhere = [key for key in tables[0][0].sizes if all(key in run.sizes for table in tables for run in table)]
    sizes = np.array([[[run.sizes[key] for run in table] for table in tables] for key in everywhere]).swapaxes(1, 2)
    fits = fit_exponents(expected.scales, sizes, level=level)
    channels = [table[0].channels for table in tables]
    sites = [name for quantity, name, step in everywhere if (quantity, step) == ("activation", 0)]
    following = _following(sites, expected.scores)
    ends = _ends(sites, {name.rpartition(".")[0] for name in queries})
    noise = _noise([run for table in tables for run in table])
    found = []
    for place, (quantity, name, step) in enumerate(everywhere):
        if not (sizes[place] > 0).all() and quantity in PARAMETER_SIZES:
            continue
        finite = len({channel.get(name) for channel in channels}) == 1
        if quantity in ("update", "rate") and name in noise:
            wanted, at_most = None, None
        else:
            wanted, at_most = expected.of(quantity, name, step, finite, ends.get(name))
        means = tuple(sizes[place].mean(axis=0).tolist())
        exponent, low, high = (float(values[place]) for values in fits)
        passed = _passes(low, high, wanted, at_most, tolerance, bool(np.isfinite(sizes[place]).all()))
        doubtful = not passed and (quantity, axis) == ("change", "width")
        if doubtful and wanted is not None and _half_aligned(expected.scales, sizes[place], wanted):
            passed, wanted, at_most = True, None, wanted
        elif doubtful and wanted is not None and wanted < exponent and low <= following.get(name, wanted) + tolerance:
            passed, wanted, at_most = True, None, following[name]
        found.append(Exponent(name, quantity, step, axis, means, exponent, low, high, wanted, passed, at_most))
    return found


def _ends(sites: list[str], queries: set[str]) -> dict[str, str]:
    """By module that holds others, the one inside whose size its output has; `sites` in the order of outputs.

    That is the last of them; where scores follow it, the last that makes no queries: values are what is handed on.
    """
    found: dict[str, str] = {}
    for place, name in enumerate(sites):
        inside = [other for other in sites[:place] if other.startswith(f"{name}.")]
        scored = bool(inside) and inside[-1] == f"{name}.scores"
        inside = [other for other in inside if not other.endswith(".scores")]
        if scored:
            inside = [other for other in inside if other not in queries] or inside
        if inside:
            found[name] = found.get(inside[-1], inside[-1])
    return found


def _following(sites: list[str], scores: dict[str, float]) -> dict[str, float]:
    """By site after an attention whose scores may move by a power of width (`sp`): that power; `sites` in order."""
    found: dict[str, float] = {}
    most = 0.0
    for name in sites:
        most = max(most, scores.get(name, 0.0))
        found |= {name: most} if most > 1e-6 else {}
    return found


def _half_aligned(scales: list[int], sizes: np.ndarray, exponent: float) -> bool:
    """The sum of two parts fits at every width, within 5 percent or three standard errors."""
    if len(scales) < 3 or not (sizes > 0).all():
        return False
    scatter = sizes.std(axis=0, ddof=1) / sizes.mean(axis=0) / np.sqrt(len(sizes)) if len(sizes) > 1 else np.zeros(1)
    return error_of_two_parts(scales, sizes, exponent) < max(0.05, 3 * float(scatter.max()))


def _noise(runs: list[RecordedRun]) -> set[str]:
    """Parameters whose gradient vanishes up to rounding (a key's bias): their normalized update means nothing."""
    found: set[str] = set()
    for run in runs:
        gradients = {name: size for (kind, name, step), size in run.sizes.items() if (kind, step) == ("gradient", 0)}
        found |= {name for name, size in gradients.items() if size < ROUNDING * max(gradients.values())}
    return found


def _passes(
    low: float, high: float, expected: float | None, at_most: float | None, tolerance: float, finite: bool
) -> bool:
    """Sizes of zero (a readout that starts at zero) have no exponent to judge; those that are not finite fail."""
    if np.isnan(low):
        return finite or (expected is None and at_most is None)
    if expected is not None:
        return low <= expected + tolerance and high >= expected - tolerance
    return at_most is None or low <= at_most + tolerance


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
    """The attentions behind sizes and rates of queries that are both off; none if anything else is.

    A bias of zeros has no size to be off, so that its rate alone tells nothing against it.
    """
    if not named or any(item.name not in queries or item.cause == "weight decay" for item in named):
        return []
    owners = dict.fromkeys(queries[item.name] for item in named)
    found = []
    for owner in owners:
        own = [item for item in named if queries[item.name] == owner]
        inits = [item for item in own if item.cause == "init"]
        if not inits or len(inits) == len(own):
            return []
        found.append(Culprit(owner, "attention scale", _exponent_of_scale(inits), inits[0].axis))
    return found


def _exponent_of_scale(inits: list[Culprit]) -> float:
    """The exponent of the scale: that of the queries' size; of a fused matrix and the output weight, both halves."""
    up = [item.exponent for item in inits if item.exponent > 0]
    down = [-item.exponent for item in inits if item.exponent <= 0]
    return sum(max(half, default=0.0) for half in (up, down)) * (1.0 if up else -1.0)
