"""Entries larger than their number allows."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check
from sigprop.checks.statistics import drawn_like_siblings, largest_normal
from sigprop.checks.subject import Subject
from sigprop.results.report import Datum, Finding, Prescription

FAR = 20.0


@check("outliers", "draw", "entries farther out than a normal law puts any of this many")
def outliers(subject: Subject) -> Iterator[Finding]:
    """The largest of n normal entries passes t with a chance of n erfc(t / sqrt 2)."""
    if subject.trained:
        return
    rows = [row for row in subject.draws.matrices if not row.recorded and row.scale]
    bad = [row for row in rows if row.largest > 1.1 * largest_normal(row.total, len(rows))]
    bad = [row for row in bad if abs(row.mean) < row.scale and row.largest * row.scale < 1e12]
    if bad:
        inits = {row.name: drawn_like_siblings(row, subject.draws, row.scale) for row in bad}
        worst = max(bad, key=lambda row: row.largest)
        yield Finding(
            "outliers",
            "draw",
            "problem" if worst.largest > FAR else "warning",
            f"{worst.name} has an entry {worst.largest:.3g} standard deviations out",
            f"Of {worst.total} normal entries the largest lies below {largest_normal(worst.total, len(rows)):.2f} "
            "standard deviations. A truncated normal sampled in low precision, or with bounds of another scale, does "
            "this.",
            parameters=tuple(row.name for row in sorted(bad, key=lambda row: -row.largest)),
            evidence=(
                Datum(
                    "largest entry in standard deviations",
                    worst.largest,
                    "weights",
                    expected=largest_normal(worst.total, len(rows)),
                ),
            ),
            prescription=Prescription("initialize it again in float32, or clamp it to its bounds"),
            edits=(edit(f"initialize {listed(list(inits))} again in float32", inits),),
        )
