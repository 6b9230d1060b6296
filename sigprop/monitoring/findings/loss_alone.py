"""The loss jumps again and again while signals, gradients and updates do not: look at the data."""

from __future__ import annotations

import math
import statistics

from sigprop.monitoring.findings.base import Findings, RunContext, finding, seen, warning
from sigprop.monitoring.history import History

BEFORE = 8
JUMP = 3.0
LASTING = 3
SHARE = 0.25
TIMES = 2
"""The loss rises to `JUMP` times its last values and to `SHARE` of where it began, not for one batch but for `LASTING`,
and does so `TIMES` times."""


@finding("loss_alone", "loss")
def loss_alone(history: History, context: RunContext) -> Findings:
    losses = [(step, loss) for step, loss in history.losses if math.isfinite(loss)]
    jumps = _jumps(losses)
    if len(jumps) < TIMES or any(sample.bad for sample in history) or not _calm(history):
        return
    steps = [losses[place][0] for place in jumps]
    yield warning(
        title=f"the loss jumps and comes back ({len(steps)} times, first at step {steps[0]}), the signals do not",
        cause="No site or update has left its history. Batches that differ so much point at the order or the "
        "mixture of the data (not shuffled, sorted by class or source), not at initialization or optimizer.",
        evidence=(seen("loss at the first jump", losses[jumps[0]][1], losses[jumps[0] - 1][1]),),
    )


def _jumps(losses: list[tuple[int, float]]) -> list[int]:
    """Places where the loss leaves what it was by a factor and more, and comes back to it later."""
    found: list[int] = []
    values = [loss for _, loss in losses]
    for place in range(BEFORE, len(values)):
        before = statistics.median(values[place - BEFORE : place])
        spread = statistics.median(abs(value - before) for value in values[place - BEFORE : place])
        high = values[place] > max(JUMP * abs(before) + 8.0 * spread, SHARE * abs(values[0]))
        high = high and min(values[place : place + LASTING]) > 0.5 * JUMP * abs(before)
        returned = any(value < 0.5 * (values[place] + before) for value in values[place + 1 :])
        if high and returned and (not found or place - found[-1] > BEFORE // 2):
            found.append(place)
    return found


def _calm(history: History) -> bool:
    """Typical variances within a factor of the run's own middle at every sample."""
    typical = []
    for sample in history:
        values = [row["variance"] for row in sample.sites.values() if row.get("variance", 0.0) > 0.0]
        if values:
            typical.append(statistics.median(map(math.log, values)))
    middle = statistics.median(typical) if typical else 0.0
    return all(abs(value - middle) < math.log(10.0) for value in typical)
