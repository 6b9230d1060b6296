"""The variance of the stream grows or shrinks with depth."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.streams import fitted_law, usable
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("stream_growth", "signal", "the variance along the stream grows or shrinks: law and rate")
def stream_growth(subject: Subject) -> Iterator[Finding]:
    for stream in subject.streams:
        rows, source = subject.finite_rows(stream, "variance")
        values = [row.variance for row in rows]
        if not usable(values):
            continue
        law = fitted_law(values)
        size = max(law.ratio, 1 / law.ratio)
        rate = max(law.rate, 1 / law.rate) if law.kind == "exponential" else 1.0
        if size < limit("stream_growth") and not (rate > limit("stream_rate") and size > limit("stream_growth") ** 0.5):
            continue
        grows = law.ratio > 1
        evidence = [Datum("stream variance, last block / first", law.ratio, source)]
        predicted = stream.values(subject.predicted, "variance")
        if source == "measured" and usable(predicted):
            evidence.append(Datum("the same", predicted[-1] / predicted[0], "predicted"))
        yield Finding(
            "stream_growth",
            "signal",
            "problem" if size > limit("stream_growth_problem") else "warning",
            f"the signal {'grows' if grows else 'shrinks'} {law.ratio:.3g} times in variance over {len(rows)} blocks "
            f"({law})",
            _cause(stream.residual, grows, law.kind),
            "dslm, App. C and G" if stream.residual else "Schoenholz et al. 2017; apjn, section 2",
            sites=tuple(row.name for row in rows),
            depths=(rows[0].depth, rows[-1].depth),
            evidence=tuple(evidence),
        )


def _cause(residual: bool, grows: bool, kind: str) -> str:
    if not residual:
        return f"Each layer multiplies the variance by gain^2 {'above' if grows else 'below'} the critical one."
    if kind == "exponential" and grows:
        return "Every branch adds in proportion to the stream itself, since nothing normalizes what it reads."
    return "Branches of unit input add up on a skip of scale one, and the stream starts small against them."
