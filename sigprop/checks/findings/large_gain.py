"""Matrices that multiply whatever they read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.suspects import started
from sigprop.checks.thresholds import limit
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription

FEWEST_INPUTS = 8


@check("large_gain", "draw", "a matrix whose std is many times 1 / sqrt(fan_in)")
def large_gain(subject: Subject) -> Iterator[Finding]:
    """Embeddings are read by rows and have no fan-in; matrices of a few inputs may hold frequencies."""
    yield from _made(subject)
    if subject.trained:
        return
    fans = {row.name: row.fan_in or (row.shape[-1] if "weight_" in row.name else 0) for row in subject.draws.matrices}
    gains = {name: subject.draws[name].std * fan**0.5 for name, fan in fans.items() if fan >= FEWEST_INPUTS}
    bad = {name: gain for name, gain in gains.items() if gain > limit("large_gain")}
    if not bad:
        return
    worst = max(bad, key=bad.__getitem__)
    row = subject.draws[worst]
    inits = {name: started(subject.draws[name]) for name in bad}
    yield say(
        "warning",
        f"the std of {worst} is {row.std:.3g}, {bad[worst]:.3g} / sqrt(fan_in)",
        f"It multiplies the variance of what it reads by {bad[worst] ** 2:.3g}: what reads it saturates or explodes. "
        "The fan-in was left out, or integers were loaded without their scale.",
        "He et al. 2015",
        parameters=tuple(bad),
        evidence=(Datum(f"std of {worst} times sqrt(fan_in)", bad[worst], "weights", expected=1.0),),
        prescription=Prescription("initialize it with std 1 / sqrt(fan_in)"),
        edits=(edit(f"initialize {listed(list(inits))} with std 1 / sqrt(fan_in)", inits),),
    )


def _made(subject: Subject) -> Iterator[Finding]:
    """Matrices that are made of several parameters when they run (weight norm, DoRA, factors)."""
    bad = {name: found for name, found in subject.observed.weights.items() if found[0] > limit("large_gain")}
    if not bad:
        return
    worst = max(bad, key=lambda name: bad[name][0])
    gain, names = bad[worst]
    rows = [subject.draws[name] for name in names if name in subject.draws.rows]
    scales = [row for row in rows if not row.is_matrix and row.mean] or rows
    odd = max(scales, key=lambda row: math.hypot(row.mean, row.std))
    family = [row for row in subject.draws if row.name.rpartition(".")[2] == odd.name.rpartition(".")[2]]
    gains = {name: item[0] for item in bad.values() for name in item[1]}
    inits = {row.name: Init("keep", value=1 / gains[row.name]) for row in family if row.name in gains}
    yield say(
        "warning",
        f"the matrix that {worst} multiplies by has std {gain:.3g} / sqrt(fan_in)",
        f"It is made of {', '.join(names)}, of which {odd.name} starts at {odd.mean or odd.std:.3g}: it multiplies the "
        f"variance of what it reads by {gain**2:.3g}.",
        "Salimans and Kingma 2016; Liu et al. 2024, DoRA",
        sites=tuple(bad),
        parameters=tuple(inits),
        evidence=(Datum(f"std of the matrix of {worst} times sqrt(fan_in)", gain, "measured", expected=1.0),),
        prescription=Prescription(
            f"start {odd.name} at the norms of the rows that it scales, or {gain:.3g} times smaller"
        ),
        edits=(edit(f"divide {listed(list(inits))} by {gain:.3g}", inits),) if inits else (),
    )
