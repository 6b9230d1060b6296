"""The variance of the stream grows or shrinks with depth."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check, say
from sigprop.checks.streams import StreamLaw, fitted_law, usable
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import SiteRow
from sigprop.results.report import Datum, Finding


@check("stream_growth", "signal", "the variance along the stream grows or shrinks: law and rate")
def stream_growth(subject: Subject) -> Iterator[Finding]:
    """Where all readers normalize, growth by addition (a power of depth) is what Pre-LN does, and no finding."""
    for stream in subject.streams:
        rows, source = subject.finite_rows(stream, "variance")
        values = [row.variance for row in rows]
        if not usable(values):
            continue
        law = fitted_law(values)
        size = max(law.ratio, 1 / law.ratio)
        rate = max(law.rate, 1 / law.rate) if law.kind == "exponential" else 1.0
        fast = rate > limit("stream_rate")
        yield from _visited(rows, source, law)
        if size < limit("stream_growth") and not (stream.even and fast and size > limit("stream_growth") ** 0.5):
            continue
        if not fast and subject.scale_free(stream):
            continue
        grows = law.ratio > 1
        evidence = [Datum("stream variance, last block / first", law.ratio, source)]
        predicted = stream.values(subject.predicted, "variance")
        if source == "measured" and usable(predicted):
            evidence.append(Datum("the same", predicted[-1] / predicted[0], "predicted"))
        yield say(
            "problem" if size > limit("stream_growth_problem") else "warning",
            f"the signal {'grows' if grows else 'shrinks'} by a factor of {size:.3g} in variance over "
            f"{len(rows)} blocks ({law})",
            _consequence(subject.scale_free(stream)),
            "dslm, App. C and G" if stream.residual else "Schoenholz et al. 2017; apjn, section 2",
            sites=tuple(row.name for row in rows),
            depths=(rows[0].depth, rows[-1].depth),
            evidence=tuple(evidence),
        )


def _visited(rows: list[SiteRow], source: str, law: StreamLaw) -> Iterator[Finding]:
    """A note where one block makes the stream by many visits: what it adds is correlated from visit to visit."""
    blocks = {row.name.partition("@")[0] for row in rows}
    if len(blocks) * 2 > len(rows) or law.ratio < len(rows):
        return
    yield say(
        "note",
        f"the signal grows by a factor of {law.ratio:.3g} in variance over {len(rows)} visits of "
        f"{', '.join(sorted(blocks))} ({law})",
        "Visits share their weights, so that what they add is correlated and sums coherently: up to depth^2 in "
        "variance, where independent blocks add up to depth^1. Each visit counts as a layer for whatever is scaled by "
        "depth, and coherent branches need 1 / depth in place of 1 / sqrt(depth).",
        sites=tuple(row.name for row in rows),
        evidence=(Datum("stream variance, last visit / first", law.ratio, source),),
    )


def _consequence(scale_free: bool) -> str:
    """What follows from the growth itself; causes are told once they were tried."""
    if scale_free:
        return "Everything that reads this stream normalizes it; later blocks add less and less to what they read."
    return "What reads this stream sees its scale: gradients and updates change with depth by as much."
