"""A model that has been trained already."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.results.report import Datum, Finding


@check("trained", "theory", "the weights look trained, so their draw is not judged")
def trained(subject: Subject) -> Iterator[Finding]:
    if subject.trained:
        yield Finding(
            "trained",
            "theory",
            "note",
            "this model looks trained: its draw is not judged, and theory describes a fresh one of these scales",
            "Gains of norms differ from channel to channel, or matrices have heavier tails than any draw.",
            evidence=(Datum("share of norms whose gains are not constant", subject.moved_gains, "weights"),),
        )
