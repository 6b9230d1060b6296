"""A parameter of zeros where its siblings are drawn."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check
from sigprop.checks.statistics import drawn_like_siblings
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("zeros_among_siblings", "draw", "a matrix of zeros among random matrices of the same kind")
def zeros_among_siblings(subject: Subject) -> Iterator[Finding]:
    """A branch that starts at zero in every layer is a scheme; in one layer it is a slip."""
    bad, usual = [], {}
    for members in subject.draws.families().values():
        members = [row for row in members if row.is_matrix]
        empty = [row for row in members if row.std == 0 and row.mean == 0]
        if empty and len(members) - len(empty) >= limit("draw_majority") * len(members):
            bad += empty
            usual[empty[0].family] = max(row.std for row in members)
    for row in subject.draws.matrices:
        dead = [part for part in row.parts if part.std == 0 and part.mean == 0]
        if dead and len(row.parts) - len(dead) >= limit("draw_majority") * len(row.parts):
            bad += dead
    inits = {row.name: drawn_like_siblings(row, subject.draws, usual[row.family]) for row in bad if row.family in usual}
    if bad:
        yield Finding(
            "zeros_among_siblings",
            "draw",
            "problem",
            f"{bad[0].name} is all zeros while its siblings in other layers are not",
            "A matrix of zeros passes no signal and, inside a branch, no gradient to what lies before it. Its siblings "
            "are random, so this is no zero-initialized scheme.",
            parameters=tuple(row.name for row in bad),
            evidence=tuple(Datum(f"std of {row.name}", 0.0, "weights") for row in bad[:3]),
            prescription=Prescription("initialize it as its siblings"),
            edits=(edit(f"initialize {listed(list(inits))} as their siblings", inits),) if inits else (),
        )
