"""Weight decay shrinks the gain of a norm."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, last, problem, seen
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

SAMPLES = 3
HALF = 0.5
INWARD = 0.5
"""Cosine between the step and the negative of the gain, above which the step mostly shrinks it."""


@finding("decayed_gain", "optimizer")
def decayed_gain(history: History, context: RunContext) -> Iterator[Finding]:
    recent = last(history, SAMPLES)
    names = []
    for name in recent[-1].parameters if recent else ():
        rows = [sample.parameters.get(name, {}) for sample in recent]
        if name in context.norms and all(_shrinks(row) for row in rows) and _kept(history, name) < HALF:
            names.append(name)
    if names:
        row = recent[-1].parameters[names[0]]
        kept = _kept(history, names[0])
        yield problem(
            title=f"step {recent[-1].step}: weight decay has taken gains of {len(names)} norms to {kept:.2f} of their"
            f" size or less, first {names[0]}",
            cause="The step of a gain points at zero: decay moves it, not the gradient. A gain sets the scale of "
            "a branch; leave gains and biases out of weight decay.",
            parameters=tuple(names),
            evidence=(
                seen("weight decay", row["weight_decay"]),
                seen("cosine of the step with shrinking", row["against"]),
            ),
        )


def _shrinks(row: dict[str, float]) -> bool:
    return row.get("weight_decay", 0.0) > 0.0 and row.get("against", 0.0) > INWARD


def _kept(history: History, name: str) -> float:
    moments = history.series("parameters", name, "second_moment")
    return math.sqrt(moments[-1] / moments[0]) if moments and moments[0] > 0 else 1.0
