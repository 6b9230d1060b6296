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
        values = [row.grad_variance for row in rows]
        if not usable(values):
            continue
        law = fitted_law(values[::-1])
        size = law.ratio if explodes else 1 / law.ratio
        if size < limit("gradient_ratio"):
            continue
        evidence = [Datum("gradient variance, first block / last", law.ratio, source)]
        predicted = stream.values(subject.predicted, "grad_variance")
        if source == "measured" and usable(predicted):
            evidence.append(Datum("the same", predicted[0] / predicted[-1], "predicted"))
        verb = "grow" if explodes else "shrink"
        yield Finding(
            "gradient_explodes" if explodes else "gradient_vanishes",
            "gradient",
            "problem" if size > limit("gradient_ratio_problem") else "warning",
            f"gradients {verb} {law.ratio:.3g} times in variance over {len(rows)} blocks, last to first ({law})",
            _cause(subject, stream.residual, explodes),
            _paper(subject, stream.residual),
            sites=tuple(row.name for row in rows),
            depths=(rows[0].depth, rows[-1].depth),
            evidence=tuple(evidence),
        )


def _cause(subject: Subject, residual: bool, explodes: bool) -> str:
    if not residual:
        side = "above" if explodes else "below"
        return f"Without skips the squared Jacobian of each layer, chi_J, multiplies the gradient; it lies {side} 1."
    placement = subject.structure.placement if subject.structure is not None else "none"
    if placement == "post" and not explodes:
        return (
            "Each Post-LN layer multiplies the squared gradient by (1 + gain of attention) / (1 + C1 Var); the gain "
            "falls below what the norm divides by when tokens become alike."
        )
    if explodes:
        return "The branches' Jacobians add to the skip's at every sum, and no scale makes up for it."
    return "The skip is scaled down, or drowned by its branches, at every sum."


def _paper(subject: Subject, residual: bool) -> str:
    if not residual:
        return "apjn, section 2"
    placement = subject.structure.placement if subject.structure is not None else "none"
    return "dslm, App. C and F; preln, section 3" if placement == "post" else "dslm, App. C"
