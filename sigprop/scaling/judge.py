"""From recorded sizes to exponents with a verdict on each."""

from __future__ import annotations

import numpy as np

from sigprop.results.coordinates import Exponent
from sigprop.scaling.expectations import Expectations
from sigprop.scaling.fit import fit_exponents
from sigprop.scaling.record import Run

ROUNDING = 1e-6
PARAMETER_SIZES = ("weight", "update", "rate", "gradient")


def judge(tables: list[list[Run]], axis: str, expected: Expectations, tolerance: float) -> list[Exponent]:
    """Fit every recorded quantity over the builds (`tables[build][seed]`) and compare it with the rule's exponent.

    A change that fails as a plain power of width is fitted once more with the correction for finite width.
    """
    if axis == "depth":
        tables = [[run.by_pattern() for run in table] for table in tables]
    everywhere = [key for key in tables[0][0].sizes if all(key in run.sizes for table in tables for run in table)]
    sizes = np.array([[[run.sizes[key] for run in table] for table in tables] for key in everywhere]).swapaxes(1, 2)
    fits = [fit_exponents(expected.scales, sizes, corrected) for corrected in (False, True)]
    channels = [table[0].channels for table in tables]
    noise = _noise([run for table in tables for run in table])
    found = []
    for place, (quantity, name, step) in enumerate(everywhere):
        if not (sizes[place] > 0).all() and quantity in PARAMETER_SIZES:
            continue
        finite = len({channel.get(name) for channel in channels}) == 1
        if quantity in ("update", "rate") and name in noise:
            wanted, at_most = None, None
        else:
            wanted, at_most = expected.of(quantity, name, step, finite)
        means = tuple(sizes[place].mean(axis=0).tolist())
        exponent, low, high = (float(values[place]) for values in fits[0])
        passed = _passes(low, high, wanted, at_most, tolerance)
        if not passed and quantity == "change" and axis == "width":
            again = [float(values[place]) for values in fits[1]]
            if _passes(again[1], again[2], wanted, at_most, tolerance):
                passed, (exponent, low, high) = True, again
        found.append(Exponent(name, quantity, step, axis, means, exponent, low, high, wanted, passed, at_most))
    return found


def _noise(runs: list[Run]) -> set[str]:
    """Parameters whose gradient vanishes up to rounding (a key's bias): their normalized update means nothing."""
    found: set[str] = set()
    for run in runs:
        gradients = {name: size for (kind, name, step), size in run.sizes.items() if (kind, step) == ("gradient", 0)}
        found |= {name for name, size in gradients.items() if size < ROUNDING * max(gradients.values())}
    return found


def _passes(low: float, high: float, expected: float | None, at_most: float | None, tolerance: float) -> bool:
    if np.isnan(low):
        return expected is None and at_most is None
    if expected is not None:
        return low <= expected + tolerance and high >= expected - tolerance
    return at_most is None or low <= at_most + tolerance
