"""Entries that no initialization makes: not finite, never written, farther out than their number allows."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import drawn_like_siblings, largest_normal
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("non_finite_weights", "draw", "entries of a parameter are infinite or not a number")
def non_finite_weights(subject: Subject) -> Iterator[Finding]:
    bad = [row for row in subject.draws if row.non_finite]
    if bad:
        yield say(
            "problem",
            f"{bad[0].name} is not finite in {bad[0].non_finite} of its entries",
            "The initialization divided by zero or overflowed, or the memory was never written.",
            parameters=tuple(row.name for row in bad),
            evidence=tuple(
                Datum(f"non-finite entries of {row.name}", row.non_finite, "weights", expected=0) for row in bad[:3]
            ),
            prescription=Prescription("initialize these parameters again"),
        )


HUGE = 1e12


@check("uninitialized_memory", "draw", "entries that no distribution gives for this many: memory never written")
def uninitialized_memory(subject: Subject) -> Iterator[Finding]:
    """The smallest of n entries lies about 1/n standard deviations from zero; memory holds 1e-40 and 1e30."""
    bad = [row for row in subject.draws if not row.recorded and not row.non_finite and _impossible(row)]
    if bad:
        first = bad[0]
        yield say(
            "problem",
            f"{first.name} looks like memory that was never written",
            "Entries span magnitudes that no distribution gives for this many entries: `torch.empty`, `to_empty` or a "
            "meta-device load without an initialization after it.",
            parameters=tuple(row.name for row in bad),
            evidence=(
                Datum("smallest entry that is not zero", first.smallest * first.scale, "weights"),
                Datum("largest entry", first.largest * first.scale, "weights"),
                Datum("standard deviation", first.std, "weights"),
            ),
            prescription=Prescription(
                "call the module's own initialization (`reset_parameters`, `init_weights`) on it"
            ),
        )


def _impossible(row: Draw) -> bool:
    if row.scale and row.largest * row.scale > HUGE:
        return True
    if not row.is_matrix or row.total < limit("fewest_entries") or not row.std:
        return False
    spread = row.scale or row.std
    return row.smallest * row.scale / spread < limit("false_alarm") / row.count and row.law == "other"


FAR = 20.0


@check("outliers", "draw", "entries farther out than a normal distribution puts any of this many")
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
        yield say(
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
