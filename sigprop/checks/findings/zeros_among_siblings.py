"""A parameter of zeros where its siblings are drawn."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import drawn_like_siblings
from sigprop.checks.subject import Subject
from sigprop.checks.suspects import started
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("zeros_among_siblings", "draw", "a matrix of zeros among random matrices of the same kind")
def zeros_among_siblings(subject: Subject) -> Iterator[Finding]:
    """A branch that starts at zero in every layer is a scheme; in one layer it is a slip."""
    yield from _constant(subject)
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
        yield say(
            "problem",
            f"{bad[0].name} is all zeros while its siblings in other layers are not",
            "A matrix of zeros passes no signal and, inside a branch, no gradient to what lies before it. Its siblings "
            "are random, so this is no zero-initialized scheme.",
            parameters=tuple(row.name for row in bad),
            evidence=tuple(Datum(f"std of {row.name}", 0.0, "weights") for row in bad[:3]),
            prescription=Prescription("initialize it as its siblings"),
            edits=(edit(f"initialize {listed(list(inits))} as their siblings", inits),) if inits else (),
        )


def _constant(subject: Subject) -> Iterator[Finding]:
    """Every unit of such a matrix computes the same, gets the same gradient, and stays the same. Of a parameter that no
    module of torch multiplies by, nothing is known: decay rates of a state space start at one number on purpose."""
    rows = [row for row in subject.draws if row.fan_in and row.is_matrix and row.std == 0 and row.mean != 0]
    rows = [row for row in rows if not row.recorded]
    rows = [row for row in rows if row.total >= limit("fewest_entries")]
    if rows:
        inits = {row.name: started(row) for row in rows}
        because = f"{listed(list(inits))} {'is' if len(rows) == 1 else 'are'} filled with one number."
        yield say(
            "problem",
            f"all entries of {rows[0].name} are {rows[0].mean:.3g}"
            + (f", as of {len(rows) - 1} more" if len(rows) > 1 else "")
            + ": its units are identical",
            f"{because} Identical units get identical gradients and stay identical.",
            parameters=tuple(inits),
            evidence=(Datum("matrices of one constant", len(rows), "weights", expected=0),),
            prescription=Prescription("initialize them with random numbers"),
            edits=(edit(f"initialize {listed(list(inits))} with std 1 / sqrt(fan_in)", inits, because),),
        )
