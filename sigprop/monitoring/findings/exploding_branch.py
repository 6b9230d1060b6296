"""One residual branch drowns its skip, and has come to do so in this run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, problem, seen
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

DROWNS = 10.0
OTHERS = 10.0
GROWTH = 4.0


@finding("exploding_branch", "signal", unless="rate_too_high")
def exploding_branch(history: History, context: RunContext) -> Iterator[Finding]:
    if len(history) < 2:
        return
    now = history.samples[-1]
    ratios = {name: row["branch_ratio"] for name, row in now.sites.items() if "branch_ratio" in row}
    if len(ratios) < 3:
        return
    worst = max(ratios, key=lambda name: ratios[name])
    others = statistics.median(value for name, value in ratios.items() if name != worst)
    series = history.series("sites", worst, "branch_ratio")
    if ratios[worst] > max(DROWNS, OTHERS * others) and ratios[worst] > GROWTH * series[0]:
        yield problem(
            title=f"step {now.step}: the branch at {worst} is {ratios[worst]:.3g} times its skip",
            cause="What was carried to this block is lost in what the block adds; the others add "
            f"{others:.2g} of their skip. It started at {series[0]:.2g}.",
            sites=(worst,),
            evidence=(seen("branch over skip", ratios[worst], others), seen("at the first sample", series[0])),
        )
