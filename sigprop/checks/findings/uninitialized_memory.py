"""Memory that was allocated and never written."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

HUGE = 1e12


@check("uninitialized_memory", "draw", "entries that no law of this many entries gives: memory never written")
def uninitialized_memory(subject: Subject) -> Iterator[Finding]:
    """The smallest of n entries lies about 1/n standard deviations from zero; memory holds 1e-40 and 1e30."""
    bad = [row for row in subject.draws if not row.recorded and not row.non_finite and _impossible(row)]
    if bad:
        first = bad[0]
        yield Finding(
            "uninitialized_memory",
            "draw",
            "problem",
            f"{first.name} looks like memory that was never written",
            "Entries span magnitudes that no law gives for this many entries: `torch.empty`, `to_empty` or a "
            "meta-device load without a draw after it.",
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
