"""A branch drowns its skip, or is drowned by it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.branches import Branch
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("branch_share", "signal", "a branch drowns its skip or is drowned by it")
def branch_share(subject: Subject) -> Iterator[Finding]:
    """The start of the stream is judged by `embedding_drowned`; later blocks here."""
    later = [branch for branch in subject.branches if not branch.first and math.isfinite(branch.share)]
    loud = [branch for branch in later if branch.share > limit("drowning_branch")]
    quiet = [branch for branch in later if 0 < branch.share < limit("drowned_branch")]
    if loud:
        worst = max(loud, key=lambda branch: branch.share)
        yield _finding(
            subject, loud, worst, "warning", f"{worst.site} drowns its skip: {worst.share:.3g} times its variance",
            "The stream is overwritten there: what lies before reaches the output, and its gradient comes back, only "
            "through this branch.", "scale its last matrix down",
        )  # fmt: skip
    if quiet:
        worst = min(quiet, key=lambda branch: branch.share)
        yield _finding(
            subject, quiet, worst, "note", f"{worst.site} adds {worst.share:.2g} of its skip's variance",
            "Small branches (LayerScale, ReZero) start as the identity on purpose; in bf16 the sum rounds them away "
            "until they have grown.", "keep the stream in float32, or start the scale nearer to 1/sqrt(layers)",
        )  # fmt: skip


def _finding(
    subject: Subject, found: list[Branch], worst: Branch, severity: str, title: str, cause: str, cure: str
) -> Finding:
    return Finding(
        "branch_share",
        "signal",
        severity,
        title,
        cause,
        "dslm, section 5.6",
        sites=tuple(branch.site for branch in found),
        depths=(found[0].depth, found[-1].depth),
        evidence=(Datum(f"variance of {worst.site} over its skip", worst.share, subject.source),),
        prescription=Prescription(cure),
    )
