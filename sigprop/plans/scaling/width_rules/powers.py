"""Rules that follow from an exponent of the readout and an alignment: muP, neural tangent, between them, standard."""

from __future__ import annotations

from fractions import Fraction

from sigprop.errors import require
from sigprop.plans.exponents import ALIGNMENTS, Alignment, Parametrization, exponents, solve
from sigprop.plans.scaling.width_rules import WIDTH_RULES, WidthRule


@WIDTH_RULES.register("mup")
def mup(alignment: Alignment | None) -> WidthRule:
    return solved("mup", Fraction(1), alignment or ALIGNMENTS["readout"])


@WIDTH_RULES.register("neural_tangent")
def neural_tangent(alignment: Alignment | None) -> WidthRule:
    return solved("neural_tangent", Fraction(1, 2), alignment or ALIGNMENTS["readout"])


@WIDTH_RULES.register("meta")
def meta(alignment: Alignment | None, argument: str = "") -> WidthRule:
    """`meta:s`: from neural tangent (s = 0) to muP (s = 1)."""
    try:
        s = Fraction(argument)
    except (ValueError, ZeroDivisionError):
        s = Fraction(-1)
    require(0 <= s <= 1, "meta-parameter s", f"meta:{argument}", "meta:s with s between 0 and 1, like meta:1/2")
    return solved(f"meta:{argument}", (1 + s) / 2, alignment or ALIGNMENTS["readout"])


@WIDTH_RULES.register("sp")
def sp(alignment: Alignment | None) -> WidthRule:
    """The standard initialization with the learning rates that full alignment allows, and an unaligned readout (Everett
    et al.); the other rules assume that the readout aligns."""
    return solved("sp", Fraction(1, 2), alignment or ALIGNMENTS["full"])


def solved(name: str, readout: Fraction, alignment: Alignment) -> WidthRule:
    """The rule with this exponent of the readout, its rates as large as the alignment allows."""
    solution = solve(Parametrization(exponents(0, 0, 0), exponents(0, "1/2", readout)), "adam", alignment)
    change = solution.feature_change
    return WidthRule(name, float(readout), float(change), float(solution.c.hidden - change), float(solution.c.readout))
