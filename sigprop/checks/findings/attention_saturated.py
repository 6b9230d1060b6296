"""Attention scores too large: the softmax is near one-hot at the start."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("attention_saturated", "tokens", "scores so large that attention is near one-hot")
def attention_saturated(subject: Subject) -> Iterator[Finding]:
    """Scores of variance s2 over n keys have an entropy of about ln(n) - s2 / 2 while s2 is below ln(n)."""
    rows = [row for row in subject.scores if math.isfinite(row.variance)]
    bad = [row for row in rows if row.variance > limit("scores_large")]
    if not bad:
        return
    worst = max(bad, key=lambda row: row.variance)
    yield Finding(
        "attention_saturated",
        "tokens",
        "problem" if worst.extras["largest_weight"] > limit("attention_saturated") else "warning",
        f"attention scores of {worst.name.removesuffix('.scores')} have variance {worst.variance:.3g}: the largest "
        f"weight is {worst.extras['largest_weight']:.2f} on average",
        "A saturated softmax passes little gradient to queries and keys, and a large one to single "
        "tokens, which grows with depth.",
        "Zhai et al. 2023, 'Stabilizing Transformer training'; dslm, B.7",
        sites=tuple(row.name for row in bad),
        depths=(bad[0].depth, bad[-1].depth),
        evidence=(
            Datum("score variance", worst.variance, subject.source),
            Datum("entropy in nats", worst.extras["entropy"], subject.source),
            Datum("largest weight", worst.extras["largest_weight"], subject.source),
        ),
    )
