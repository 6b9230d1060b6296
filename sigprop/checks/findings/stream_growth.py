"""The variance of the stream grows or shrinks with depth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from sigprop.checks.registry import check, say, told
from sigprop.checks.streams import StreamLaw, fitted_law, usable
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import SiteRow
from sigprop.results.report import Datum, Finding

FEWEST = 8
"""Calls of one function that show a recurrence."""


@check("stream_growth", "signal", "the variance along the stream grows or shrinks, and how fast")
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


@check("steps_grow", "signal", "a recurrence that multiplies its state by more than one at each step")
def steps_grow(subject: Subject) -> Iterator[Finding]:
    """The same function in the same place, called again and again on what it made."""
    found = {}
    for (site, function, _), sizes in subject.observed.steps.items():
        late = [after / before for before, after in pairwise(sizes[len(sizes) // 2 :]) if 0 < before < math.inf]
        grows = len(sizes) >= FEWEST and min(late, default=0.0) > limit("stream_rate")
        if grows and math.isfinite(sizes[-1]) and sizes[-1] > limit("stream_growth") * sizes[0] > 0:
            rate = math.exp(sum(map(math.log, late)) / len(late))
            found[sizes[-1] / sizes[0]] = (site, function, len(sizes), rate)
    for size in sorted(found, reverse=True)[:1]:
        site, function, count, rate = found[size]
        yield told(
            "problem" if size > limit("stream_growth_problem") else "warning",
            f"what `{function}` in {site} makes grows at each of {count} steps, by {size:.3g} in variance in all",
            f"Each multiplies what comes to it by {rate**0.5:.3g}: the recurrence (an unrolled loop, a stack) is "
            "unstable and explodes with the number of steps, forward and backward.",
            "keep the factor of a step at one or below: exp(dt * A) in place of 1 + dt * A, a smaller step, a branch "
            "times 1 / sqrt(steps), a recurrent matrix of spectral radius one (orthogonal_), a mean in place of a sum, "
            "or a norm",
            [site],
            datum=Datum("variance of the last step over that of the first", size, "measured", expected=1.0),
        )


def _consequence(scale_free: bool) -> str:
    """What follows from the growth itself; causes are told once they were tried."""
    if scale_free:
        return "Everything that reads this stream normalizes it; later blocks add less and less to what they read."
    return "What reads this stream sees its scale: gradients and updates change with depth by as much."
