"""Outputs that do not depend on the input."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("ignores_input", "signal", "outputs that do not depend on the input")
def ignores_input(subject: Subject) -> Iterator[Finding]:
    """The model is run on another input of the same values; an output of zeros is left to `no_gradient`."""
    share = subject.observed.answer
    output = subject.observed.output
    if output is None or not math.isfinite(share) or share > limit("same_output") or not bool(output.any()):
        return
    fix = next((end.fix for end in subject.gradient_ends[1].values() if end.fix), "")
    yield Finding(
        "ignores_input",
        "signal",
        "problem",
        f"the output does not depend on the input: another one changes {share:.2g} of its mean square",
        "What is left of the signal at the output is a constant (biases), so that nothing about the input can be "
        "learned until it has grown back.",
        prescription=Prescription(fix) if fix else None,
        evidence=(Datum("share of the output that another input changes", share, "measured"),),
    )
