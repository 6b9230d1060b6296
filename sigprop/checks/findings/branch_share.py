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
        severity, cause, cure = _quiet(subject, quiet, len(later))
        yield _finding(
            subject, quiet, worst, severity,
            f"{len(quiet)} of {len(later)} branches add next to nothing: {worst.site} {worst.share:.2g} of its skip's "
            "variance", cause, cure,
        )  # fmt: skip


def _quiet(subject: Subject, quiet: list[Branch], count: int) -> tuple[str, str, str]:
    """A note where a constant at the branch's end (LayerScale, ReZero) is what makes it small: it learns by itself."""
    ends = [junction.weights for junction in (subject.structure.junctions if subject.structure else [])
            if junction.exit in {branch.site.removesuffix("[0]") for branch in quiet}]  # fmt: skip
    rows = [[subject.draws[name] for name in names if name in subject.draws.rows] for names in ends]
    scaled = [
        found for found in rows if any(row.std == 0 and 0 < abs(row.mean) < limit("small_scale") for row in found)
    ]
    if rows and len(scaled) == len(rows):
        return (
            "note",
            "They end in a constant scale that starts small (LayerScale, ReZero) and is learned; in bf16 the sum "
            "rounds them away until it has grown.",
            "keep the stream in float32",
        )
    share = len(quiet) / max(count, 1)
    return (
        "problem" if share > limit("silent_share") else "warning",
        "In bf16 the sum with the skip rounds them away (8 bits: 1.5e-5 in variance), and in any format the output "
        "hardly knows of them: nothing that they compute reaches the loss until they have grown.",
        "enlarge what they read or the std of their last matrices; keep the stream in float32",
    )


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
