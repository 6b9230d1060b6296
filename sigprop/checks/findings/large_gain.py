"""Matrices that multiply whatever they read."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.suspects import started
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

FEWEST_INPUTS = 8


@check("large_gain", "draw", "a matrix whose std is many times 1 / sqrt(fan_in)")
def large_gain(subject: Subject) -> Iterator[Finding]:
    """Embeddings are read by rows and have no fan-in; matrices of a few inputs may hold frequencies."""
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
    yield Finding(
        "large_gain",
        "draw",
        "warning",
        f"the std of {worst} is {row.std:.3g}, {bad[worst]:.3g} / sqrt(fan_in)",
        f"It multiplies the variance of what it reads by {bad[worst] ** 2:.3g}: what reads it saturates or explodes. "
        "The fan-in was left out, or integers were loaded without their scale.",
        "He et al. 2015",
        parameters=tuple(bad),
        depths=subject.depths_of(bad),
        evidence=(Datum(f"std of {worst} times sqrt(fan_in)", bad[worst], "weights", expected=1.0),),
        prescription=Prescription("initialize it with std 1 / sqrt(fan_in)"),
        edits=(edit(f"initialize {listed(list(inits))} with std 1 / sqrt(fan_in)", inits),),
    )
