"""Rounding that grows on its way to the output."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("rounding", "precision", "outputs that rounding to bfloat16 changes")
def rounding(subject: Subject) -> Iterator[Finding]:
    """Every output of a module of torch is rounded once; a chaotic network multiplies what that changes."""
    share = subject.observed.rounding
    if not share > limit("rounding"):
        return
    yield Finding(
        "rounding",
        "precision",
        "warning",
        f"rounding to bf16 changes {share:.2g} of the output's mean square",
        "Differences grow on their way through the network (chaos): runs that round differently, on other devices or "
        "with other kernels, part within a few steps.",
        "apjn, section 2; Schoenholz et al. 2017",
        evidence=(Datum("share of the output that rounding to bf16 changes", share, "measured"),),
        prescription=Prescription(
            "run in float32, or lower the std (the gains, the scores) until gradients stop growing"
        ),
    )
