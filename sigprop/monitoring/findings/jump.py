"""A signal or gradient that leaves its own history from one sample to the next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, seen, warning
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

BEFORE = 5
FACTOR = 30.0
DEVIATIONS = 12.0


@finding("jump", "signal", unless="rate_too_high")
def jump(history: History, context: RunContext) -> Iterator[Finding]:
    if len(history) <= BEFORE or history.samples[-1].bad is not None:
        return
    now = history.samples[-1]
    for name, row in now.sites.items():
        series = history.series("sites", name, "variance")
        if "variance" in row and _left(series):
            before = statistics.median(series[-1 - BEFORE : -1])
            yield warning(
                title=f"step {now.step}: the variance at {name} jumped from {before:.2g} to {series[-1]:.2g}",
                cause="It is the first place on the forward pass to leave its own history.",
                sites=(name,),
                evidence=(seen("variance", series[-1], before),),
            )
            return


def _left(series: list[float]) -> bool:
    """Far from its last values by a factor, and by many times their own movement."""
    values = [math.log(value) for value in series[-1 - 2 * BEFORE :] if value > 0.0 and math.isfinite(value)]
    if len(values) <= BEFORE:
        return False
    middle = statistics.median(values[:-1])
    spread = statistics.median(abs(value - middle) for value in values[:-1])
    return abs(values[-1] - middle) > max(math.log(FACTOR), DEVIATIONS * spread)
