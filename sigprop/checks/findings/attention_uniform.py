"""Attention that cannot tell its keys apart at all."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.results.report import Datum, Finding, Prescription

NOTHING = 1e-6


@check("attention_uniform", "tokens", "scores so small that attention is exactly uniform")
def attention_uniform(subject: Subject) -> Iterator[Finding]:
    """Ordinary draws give score variances of 1e-3 to 1; below 1e-6 float16 sees equal weights."""
    rows = [row for row in subject.scores if math.isfinite(row.variance) and row.variance < NOTHING]
    if rows:
        yield Finding(
            "attention_uniform",
            "tokens",
            "note",
            f"attention is uniform in {len(rows)} of {len(subject.scores)} layers: "
            f"score variance {rows[0].variance:.2g}",
            "Queries or keys start at (nearly) zero. Zero queries are a scheme of muP; the gradient of the keys is "
            "zero until they move.",
            "Yang et al. 2022, App. D.2",
            sites=tuple(row.name for row in rows),
            depths=(rows[0].depth, rows[-1].depth),
            evidence=(Datum("score variance", rows[0].variance, subject.source),),
            prescription=Prescription("draw the queries with std 1 / sqrt(fan_in) if this is not meant"),
        )
