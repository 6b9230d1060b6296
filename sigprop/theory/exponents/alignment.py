r"""Alignment: how strongly updates and activations line up, as exponents of the width.

    RMS(W_l dh_l)  = d^{omega_l} RMS(W_l)  RMS(dh_l)
    RMS(dW_l h_l)  = d^{alpha_l} RMS(dW_l) RMS(h_l)
    RMS(dW_l dh_l) = d^{u_l}     RMS(dW_l) RMS(dh_l)

1/2 means independent (a random walk over `d` terms), 1 fully aligned. `full` is the usual assumption of the
learning-rate tables; it leaves the readout at omega = 1/2. `readout` also lets the readout align with the
features' change (omega = 1), which muP guards against and which is what a linear model shows.
Reference: Stratos, eqs. (15) to (17); Everett et al. 2024.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from sigprop.errors import InputError, UnknownNameError, require
from sigprop.theory.exponents.roles import HALF


@dataclass(frozen=True)
class Alignment:
    """Exponents for hidden and readout layers; the embedding of a one-hot token has no alignment."""

    alpha_hidden: Fraction = Fraction(1)
    alpha_readout: Fraction = Fraction(1)
    u_hidden: Fraction = Fraction(1)
    u_readout: Fraction = Fraction(1)
    omega_hidden: Fraction = HALF
    omega_readout: Fraction = HALF
    name: str = "custom"

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if key != "name":
                require(0 <= value <= 1, key, str(value), "an exponent between 0 and 1")


ALIGNMENTS: dict[str, Alignment] = {
    "full": Alignment(name="full"),
    "readout": Alignment(omega_readout=Fraction(1), name="readout"),
    "none": Alignment(HALF, HALF, HALF, HALF, name="none"),
}


def read_alignment(text: str) -> Alignment:
    """`full`, `readout`, `none`, or settings like `alpha=3/4,omega_readout=1` on top of `full`."""
    if text in ALIGNMENTS:
        return ALIGNMENTS[text]
    if "=" not in text:
        raise UnknownNameError("alignment", text, ALIGNMENTS, "Or give alpha=..,omega_readout=..,u=..")
    known = [key for key in vars(Alignment()) if key != "name"]
    found: dict[str, Fraction] = {}
    for key, value in re.findall(r"(\w+)\s*=\s*([^,]+)", text):
        keys = [key] if key in known else [name for name in known if name.rpartition("_")[0] == key]
        if not keys:
            raise UnknownNameError("alignment exponent", key, [*known, "alpha", "u", "omega"])
        try:
            found.update(dict.fromkeys(keys, Fraction(value.strip())))
        except (ValueError, ZeroDivisionError) as error:
            raise InputError(f"alignment {key} = {value!r}: needs a number or a fraction like 1/2") from error
    return replace(ALIGNMENTS["full"], name=text, **found)  # pyright: ignore[reportArgumentType]
