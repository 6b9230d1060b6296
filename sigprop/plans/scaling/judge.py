"""From recorded sizes to exponents with a verdict on each."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sigprop.plans.scaling.expectations import Expectations
from sigprop.plans.scaling.fit import fit_exponents, fit_two_parts
from sigprop.plans.scaling.record import RecordedRun
from sigprop.results.coordinates import Exponent

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
    A change that is no power of width as expected may be one of two parts, aligned and random (`fit`); then the
    expected exponent, that of large width, is only a bound from above.
    """
    if axis == "depth":
        tables = [[run.by_pattern() for run in table] for table in tables]
    everywhere = [key for key in tables[0][0].sizes if all(key in run.sizes for table in tables for run in table)]
    sizes = np.array([[[run.sizes[key] for run in table] for table in tables] for key in everywhere]).swapaxes(1, 2)
    fits = fit_exponents(expected.scales, sizes, level=level)
    channels = [table[0].channels for table in tables]
    sites = [name for quantity, name, step in everywhere if (quantity, step) == ("activation", 0)]
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


def _half_aligned(scales: list[int], sizes: np.ndarray, exponent: float) -> bool:
    """The law of two parts holds at every width, within 5 percent or three standard errors."""
    if len(scales) < 3 or not (sizes > 0).all():
        return False
    scatter = sizes.std(axis=0, ddof=1) / sizes.mean(axis=0) / np.sqrt(len(sizes)) if len(sizes) > 1 else np.zeros(1)
    return fit_two_parts(scales, sizes, exponent).error < max(0.05, 3 * float(scatter.max()))


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
