"""All tokens become correlated."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("rank_collapse", "tokens", "token correlation passes 0.9: where, and the value it settles at")
def rank_collapse(subject: Subject) -> Iterator[Finding]:
    """Softmax attention averages values, so each block raises the correlation of tokens that it starts from."""
    if not subject.attends:
        return
    for stream in subject.streams:
        rows = [row for row in stream.rows(subject.profile) if math.isfinite(row.token_correlation)]
        values = [row.token_correlation for row in rows]
        if len(values) < 2 or values[-1] < limit("rank_collapse"):
            continue
        place = next(i for i, value in enumerate(values) if value >= limit("rank_collapse"))
        evidence = [Datum("token correlation at the last block", values[-1], subject.source)]
        predicted = stream.values(subject.predicted, "token_correlation")
        if subject.measured is not None and predicted:
            evidence.append(Datum("the same", predicted[-1], "predicted"))
        if subject.scores:
            entropy = sum(row.extras["entropy"] for row in subject.scores) / len(subject.scores)
            evidence.append(Datum("average attention entropy in nats", entropy, subject.source))
        yield Finding(
            "rank_collapse",
            "tokens",
            "problem" if values[-1] > limit("rank_collapse_problem") else "warning",
            f"token correlation passes {limit('rank_collapse'):g} at block {place + 1} of "
            f"{len(values)} and ends at {values[-1]:.4g}",
            "Attention that is nearly uniform gives every token the same average, and the stream keeps too little of "
            "its own; gradients of queries and keys vanish with 1 - correlation. Entropy collapse is the other end of "
            "the same dial: sharper scores mix less.",
            "dslm, App. F; Noci et al. 2022",
            sites=tuple(row.name for row in rows[place:]),
            depths=(rows[place].depth, rows[-1].depth),
            evidence=tuple(evidence),
        )
