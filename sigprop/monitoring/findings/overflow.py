"""A tensor left the range of the format it is held in."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, last, module_of, problem, seen
from sigprop.monitoring.history import History, Sample
from sigprop.results.report import Finding

GRADIENT_SAMPLES = 3
"""A loss scaler tries larger scales until gradients overflow; only a row of such samples is no trial."""


@finding("overflow", "precision")
def overflow(history: History, context: RunContext) -> Iterator[Finding]:
    for sample in last(history, 1):
        for name, row in sample.sites.items():
            for narrow in ("fp16", "bf16"):
                if row.get(f"{narrow}_overflow", 0.0) > 0.0 or _arose(sample, name, f"{narrow}_overflow" in row):
                    yield _finding(history, sample.step, name, narrow, "")
                    return
    for narrow in ("fp16", "bf16"):
        recent = last(history, GRADIENT_SAMPLES)
        key = f"grad_{narrow}_overflow"
        if recent and all(any(row.get(key, 0.0) > 0.0 for row in s.sites.values()) for s in recent):
            name = [name for name, row in recent[-1].sites.items() if row.get(key, 0.0) > 0.0][-1]
            yield _finding(history, recent[-1].step, name, narrow, "grad_")


def _arose(sample: Sample, name: str, narrow: bool) -> bool:
    """The first bad place of the forward pass is held in a narrow format, and no parameter of it was bad before.

    An infinity inside a product leaves a nan: the weight, rounded to the format, was infinite already.
    """
    if not narrow or sample.bad != ("forward", name):
        return False
    own = [row for key, row in sample.parameters.items() if module_of(key) == name]
    return all(math.isfinite(row.get("second_moment", 0.0)) for row in own)


def _finding(history: History, step: int, name: str, narrow: str, prefix: str) -> Finding:
    share = history.samples[-1].sites[name][f"{prefix}{narrow}_overflow"]
    before = history.series("sites", name, f"{prefix}{narrow}_headroom")[:-1]
    what = "gradient" if prefix else "signal"
    evidence = [seen(f"share of infinite entries ({narrow})", share, 0.0)]
    if before:
        evidence.append(seen("largest entry at the sample before, as a share of the largest number", before[-1]))
    return problem(
        title=f"step {step}: the {what} overflows {narrow} first at {name}",
        cause=f"Entries exceed the largest number of {narrow}. "
        + ("The loss scale is too large for this place." if prefix else "bf16 has the range of float32."),
        sites=(name,),
        evidence=tuple(evidence),
    )
