"""One rational exponent for each role of a weight: embedding, hidden, readout."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from sigprop.errors import InputError

ROLES = ("embedding", "hidden", "readout")
HALF = Fraction(1, 2)


class Exponents(NamedTuple):
    """Exponents of the width `d`, one per role; a quantity of the role scales as `d**-exponent`."""

    embedding: Fraction
    hidden: Fraction
    readout: Fraction

    def __str__(self) -> str:
        return ", ".join(map(str, self))


def exponents(*values: int | str | Fraction) -> Exponents:
    """Three exact exponents; `exponents(0, "1/2", "1/2")`."""
    if len(values) != 3:
        raise InputError(f"exponents {values!r}: needs three, for {', '.join(ROLES)}")
    try:
        return Exponents(*(Fraction(value) for value in values))
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"exponents {values!r}: needs whole numbers or fractions like 1/2") from error
