"""A matrix drawn uniformly where its siblings are normal, or the other way round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

ENOUGH = 1024
EXPECTED = {"normal": 3.0, "truncated normal": 2.37, "uniform": 1.8}


@check("odd_law", "draw", "uniform where the siblings are normal, or normal where they are uniform")
def odd_law(subject: Subject) -> Iterator[Finding]:
    """The kurtosis is 3 for a normal and 1.8 for a uniform law, with a standard error of sqrt(24 / n)."""
    if subject.trained:
        return
    bad: list[tuple[Draw, str]] = []
    for members in subject.draws.families().values():
        rows = [row for row in members if row.is_matrix and row.is_random and row.total >= ENOUGH]
        if len(rows) < 3:
            continue
        law, count = Counter(row.law for row in rows).most_common(1)[0]
        if law in EXPECTED and count >= limit("draw_majority") * len(rows):
            bad += [(row, law) for row in rows if {row.law, law} in ({"uniform", "normal"},)]
    if bad:
        worst, law = bad[0]
        yield Finding(
            "odd_law",
            "draw",
            "warning",
            f"{worst.name} is {worst.law} where the same matrix of other layers is {law}",
            "Another initialization reached this layer than the others: a module that an `apply` or a name pattern "
            "missed, or a layer that was replaced later.",
            parameters=tuple(row.name for row, _ in bad),
            depths=subject.depths_of([row.name for row, _ in bad]),
            evidence=(Datum(f"kurtosis of {worst.name}", worst.kurtosis, "weights", expected=EXPECTED[law]),),
            prescription=Prescription("draw it like its siblings"),
        )
