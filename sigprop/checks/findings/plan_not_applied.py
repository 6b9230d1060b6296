"""A plan was named, and the weights do not carry it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.registry import check
from sigprop.checks.statistics import sigmas
from sigprop.checks.subject import Subject
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("plan_not_applied", "draw", "the weights are not drawn as the given plan says")
def plan_not_applied(subject: Subject) -> Iterator[Finding]:
    """Each drawn row of the plan against the sample: std within its standard error, constants exactly."""
    if subject.plan is None:
        return
    rows = {row.name: row.init for row in subject.plan.parameters}
    pairs = [(row, rows[row.name]) for row in subject.draws if row.name in rows]
    bad = [(row, init) for row, init in pairs if _differs(row, init, len(pairs))]
    if bad:
        worst, init = max(bad, key=lambda item: abs(math.log((item[0].std or 1e-9) / (item[1].std or 1e-9))))
        yield Finding(
            "plan_not_applied",
            "draw",
            "problem",
            f"{worst.name} does not carry the plan: std {worst.std:.3g} where it says {init}",
            "The plan was not applied to this model, or something drew the weights again after it.",
            parameters=tuple(row.name for row, _ in bad),
            evidence=(
                Datum(f"std of {worst.name}", worst.std, "weights", worst.std * worst.log_std_error, init.std),
                Datum("parameters that do not fit", len(bad), "weights", expected=0),
            ),
            prescription=Prescription("plan.apply_(model)"),
        )


def _differs(row: Draw, init: Init, tests: int) -> bool:
    if init.kind in ("keep", "blocks"):
        return False
    if init.kind == "constant" or init.std == 0:
        value = init.value if init.kind == "constant" else 0.0
        return row.std != 0 or abs(row.mean - value) > 1e-6 * max(abs(value), 1.0)
    if not row.std:
        return True
    distance = abs(math.log(row.std / init.std))
    return distance > 0.05 and distance > sigmas(tests) * row.log_std_error * math.sqrt(2.0)
