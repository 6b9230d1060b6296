"""A matrix whose mean is not zero by its own standard error."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import drawn_like_siblings, sigmas
from sigprop.checks.subject import Subject, effect
from sigprop.checks.thresholds import limit
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("nonzero_mean", "draw", "the entries of a matrix have a mean")
def nonzero_mean(subject: Subject) -> Iterator[Finding]:
    """A mean m adds a rank-one part of size m sqrt(fan_in fan_out) beside the random part of size std sqrt(fan)."""
    if subject.trained:
        return
    rows = [row for row in subject.draws.matrices if row.fan_in and row.law != "other"]
    exchanged, size = _exchanged(rows, sigmas(len(rows)))
    if exchanged:
        yield _told_exchanged(exchanged, size)
    bad = []
    for row in [row for row in rows if row not in exchanged]:
        error = row.std / math.sqrt(row.count)
        share = row.mean**2 * row.fan_in / row.std**2
        if abs(row.mean) > (0.0 if row.recorded else sigmas(len(rows)) * error) and share > 0.1:
            bad.append((share, error, row))
    if bad:
        inits = {row.name: drawn_like_siblings(row, subject.draws, row.std) for _, _, row in bad}
        share, error, worst = max(bad, key=lambda item: item[0])
        yield say(
            _severity(subject, share, inits),
            f"{worst.name} has mean {worst.mean:.3g}, {abs(worst.mean) / error:.3g} standard errors from zero",
            "A mean is a rank-one matrix: it carries the average channel only, which it multiplies by mean * fan_in. "
            "A uniform distribution on [0, 1) or a wrong offset does this.",
            parameters=tuple(row.name for _, _, row in sorted(bad, key=lambda item: -item[0])),
            evidence=(
                Datum("mean of the entries", worst.mean, "weights", error, 0.0),
                Datum("variance of its rank-one part over the random part", share, "weights"),
            ),
            prescription=Prescription("subtract the mean, or use a centred distribution"),
            edits=(edit(f"initialize {listed(list(inits))} with mean 0", inits),),
        )


def _exchanged(rows: list[Draw], tests: float) -> tuple[list[Draw], float]:
    """Normal matrices of std 1, the default, whose common mean is as small as a std is, and not zero; and that mean."""
    found = [row for row in rows if abs(row.std - 1.0) < 0.05 and abs(row.mean) < 0.2 and row.fan_in > 9]
    found = [row for row in found if row.law == "normal"]
    count = sum(row.count for row in found)
    mean = sum(row.mean * row.count for row in found) / max(count, 1)
    return (found, float(f"{abs(mean):.1g}")) if abs(mean) > tests / max(count, 1) ** 0.5 else ([], 0.0)


def _told_exchanged(rows: list[Draw], mean: float) -> Finding:
    inits = {row.name: Init("normal", std=mean) for row in rows}
    because = "Mean and std were exchanged: `normal_(weight, 0.02)` sets the mean, and leaves the std at 1."
    return say(
        "problem",
        f"{listed(list(inits))} {'has' if len(rows) == 1 else 'have'} std 1 and mean {mean:g}",
        because,
        parameters=tuple(inits),
        evidence=(Datum("mean of all their entries", mean, "weights", expected=0.0), Datum("std", 1.0, "weights")),
        prescription=Prescription(f"name the argument: normal_(weight, std={mean:g})"),
        edits=(edit(f"initialize {listed(list(inits))} with std {mean:g}", inits, because),),
    )


def _severity(subject: Subject, share: float, inits: dict[str, Init]) -> str:
    """A note where centred entries leave the output as it is: a gate that starts positive on purpose."""
    if subject.measured is not None and effect(subject, inits) < limit("small_effect"):
        return "note"
    return "problem" if share > 10 else "warning"
