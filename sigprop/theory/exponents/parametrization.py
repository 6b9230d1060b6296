r"""Parametrizations: multiplier exponents `a` and initialization exponents `b` per role.

    h_{l+1} = d^{-a_l} W_l h_l,    Var W_l = d^{-2 b_l},    learning rate_l = C d^{-c_l}

Learning-rate exponents `c` depend on the optimizer: `solve` finds them. A parametrization may also fix them.
Reference: Stratos, eqs. (1), (2), (11) and Table 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sigprop.errors import InputError, UnknownNameError
from sigprop.theory.exponents.roles import Exponents, exponents


@dataclass(frozen=True)
class Parametrization:
    """Multiplier exponents `a`, initialization exponents `b`, and `c` where the learning rates are fixed."""

    a: Exponents
    b: Exponents
    c: Exponents | None = None
    name: str = "custom"

    def initial(self) -> Exponents:
        """`a + b`: what the initialization alone can see."""
        return Exponents(*(a + b for a, b in zip(self.a, self.b, strict=True)))


PARAMETRIZATIONS: dict[str, Parametrization] = {
    "SP": Parametrization(exponents(0, 0, 0), exponents(0, "1/2", "1/2"), name="SP"),
    "NTK": Parametrization(exponents(0, "1/2", "1/2"), exponents(0, 0, 0), name="NTK"),
    "muP": Parametrization(exponents("-1/2", 0, "1/2"), exponents("1/2", "1/2", "1/2"), name="muP"),
    "MF": Parametrization(exponents(0, "1/2", 1), exponents(0, 0, 0), name="MF"),
}


def read_parametrization(text: str) -> Parametrization:
    """A table name in any case, or `a=0,0,0;b=0,1/2,1/2` with an optional `;c=...`."""
    for name, entry in PARAMETRIZATIONS.items():
        if text.lower() == name.lower():
            return entry
    if "=" not in text:
        raise UnknownNameError("parametrization", text, PARAMETRIZATIONS, "Or give a=..,..,..;b=..,..,..")
    found = {}
    for key, values in re.findall(r"([a-z]+)\s*=\s*([-\d/.,\s]+)", text):
        found[key] = exponents(*(value.strip() for value in values.strip(" ,;").split(",")))
    if not {"a", "b"} <= set(found) <= {"a", "b", "c"}:
        raise InputError(f"parametrization {text!r}: needs a=..,..,.. and b=..,..,.. (and c=..,..,.. if fixed)")
    return Parametrization(found["a"], found["b"], found.get("c"))
