"""Exponentials of numbers that lie far out."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

MASKED = -50.0


@check("exponent", "signal", "exponentials of numbers that lie far out")
def exponent(subject: Subject) -> Iterator[Finding]:
    """The median of what is read; what is masked (below -50) is meant to vanish."""
    bad = {name: value for name, value in subject.observed.exponents.items()
           if abs(value) > limit("exponent") and value > MASKED}  # fmt: skip
    if not bad:
        return
    worst = max(bad, key=lambda name: abs(bad[name]))
    yield Finding(
        "exponent",
        "signal",
        "problem",
        f"the exponential in {worst} reads {bad[worst]:.3g}: it makes {2.718281828 ** bad[worst]:.3g}",
        "A logarithm of a scale (a std, a temperature, a step size) starts so far out that what it scales drowns all "
        "else, or vanishes.",
        sites=tuple(bad),
        depths=subject.depths_of(bad),
        evidence=(Datum(f"median of what the exponential in {worst} reads", bad[worst], "measured", expected=0.0),),
        prescription=Prescription("start the logarithm near 0"),
    )
