"""Gradients along the stream: explosion and vanishing are one test with two names."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.streams import fitted_law, usable
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


def gradient_finding(subject: Subject, explodes: bool) -> Iterator[Finding]:
    """First block over last beyond the threshold, on one side."""
    for stream in subject.streams:
        rows, source = subject.finite_rows(stream, "grad_variance")
        values = subject.relative_gradients(stream, rows)
        if not usable(values) or not stream.even:
            continue
        law = fitted_law(values[::-1])
        size = law.ratio if explodes else 1 / law.ratio
        if size < limit("gradient_ratio"):
            continue
        evidence = [Datum("gradient variance, first block / last", law.ratio, source)]
        predicted = subject.relative_gradients(stream, stream.rows(subject.predicted))
        if source == "measured" and usable(predicted):
            evidence.append(Datum("the same", predicted[0] / predicted[-1], "predicted"))
        relative = ", beside the stream" if subject.scale_free(stream) else ""
        verb = "grow" if explodes else "shrink"
        yield Finding(
            "gradient_explodes" if explodes else "gradient_vanishes",
            "gradient",
            "problem" if size > limit("gradient_ratio_problem") else "warning",
            f"gradients {verb} by a factor of {size:.3g} in variance{relative}, over {len(rows)} blocks, "
            f"backwards ({law})",
            _consequence(stream.residual, explodes),
            _paper(subject, stream.residual),
            sites=tuple(row.name for row in rows),
            depths=(rows[0].depth, rows[-1].depth),
            evidence=tuple(evidence),
        )


def _consequence(residual: bool, explodes: bool) -> str:
    """What follows from the ratio itself; causes are told once they were tried."""
    if not residual:
        return "Without skips every layer multiplies the squared gradient by its chi_J."
    late = "last" if explodes else "first"
    return f"One learning rate for all blocks is too {'large for the first' if explodes else 'small for the ' + late}."


def _paper(subject: Subject, residual: bool) -> str:
    if not residual:
        return "apjn, section 2"
    placement = subject.structure.placement if subject.structure is not None else "none"
    return "dslm, App. C and F; preln, section 3" if placement == "post" else "dslm, App. C"
