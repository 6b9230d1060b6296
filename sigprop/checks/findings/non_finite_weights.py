"""Weights that are not numbers."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.results.report import Datum, Finding, Prescription


@check("non_finite_weights", "draw", "entries of a parameter are infinite or not a number")
def non_finite_weights(subject: Subject) -> Iterator[Finding]:
    bad = [row for row in subject.draws if row.non_finite]
    if bad:
        yield Finding(
            "non_finite_weights",
            "draw",
            "problem",
            f"{bad[0].name} holds {bad[0].non_finite} entries that are not finite",
            "The draw divided by zero or overflowed, or the memory was never written.",
            parameters=tuple(row.name for row in bad),
            evidence=tuple(
                Datum(f"non-finite entries of {row.name}", row.non_finite, "weights", expected=0) for row in bad[:3]
            ),
            prescription=Prescription("draw these parameters again"),
        )
