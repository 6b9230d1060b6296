r"""Width exponents: how initialization, multipliers and learning rates must shrink as a network widens.

Multiplier exponents `a` and initialization exponents `b` per role, in exact arithmetic:

    h_{l+1} = d^{-a_l} W_l h_l,    Var W_l = d^{-2 b_l},    learning rate_l = C d^{-c_l}

`solve` finds the learning-rate exponents `c` of an optimizer under an alignment, the largest that are stable.
docs/reference/exponents.md has the algebra: alignments, optimizers as rules for the size of an update, the solution.
Reference: Stratos, eqs. (1), (2), (11), (12), (15) to (24) and Table 1; Everett et al. 2024; for Muon derived here from
the singular values of the update.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from sigprop.errors import InputError, UnknownNameError, require

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
        raise InputError(f"exponents {values!r}: needs three, for {', '.join(Exponents._fields)}")
    try:
        return Exponents(*(Fraction(value) for value in values))
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"exponents {values!r}: needs whole numbers or fractions like 1/2") from error


# -- Alignment: how strongly updates and activations line up, as exponents of the width


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


def read_alignment(text: Alignment | str) -> Alignment:
    """`full`, `readout`, `none`, or settings like `alpha=3/4,omega_readout=1` on top of `full`."""
    if isinstance(text, Alignment):
        return text
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


# -- Optimizers as rules for the size of an update


# Growth exponent of each scale for embedding (d x V), hidden (d x d) and readout (V x d).
MUON_SCALES: dict[str, Exponents] = {
    "none": exponents(0, 0, 0),
    "shape": exponents("1/2", 0, 0),
    "rms": exponents("1/2", "1/2", "1/2"),
    "unit": exponents("1/2", 0, "-1/2"),
}


@dataclass(frozen=True)
class OptimizerRule:
    """`gradient`, `weight`: powers of the gradient's and the weight's size in the update's size."""

    name: str
    gradient: int = 0
    weight: int = 0
    scale: str = ""

    @property
    def orthogonal(self) -> bool:
        return self.scale != ""

    def update(self, role: str, b: Fraction, c: Fraction, g: Fraction) -> Fraction:
        """Exponent `e` of the update's entries."""
        if self.orthogonal:
            return c + HALF - getattr(MUON_SCALES[self.scale], role) + self.weight * b
        return c + self.gradient * g + self.weight * b

    def alpha(self, role: str, alpha: Fraction) -> Fraction:
        """The alignment exponent that applies: orthogonal hidden updates act like independent ones."""
        return HALF if self.orthogonal and role == "hidden" else alpha


OPTIMIZERS: dict[str, OptimizerRule] = {
    "sgd": OptimizerRule("sgd", gradient=1),
    "momentum": OptimizerRule("momentum", gradient=1),
    "adam": OptimizerRule("adam"),
    "adamw": OptimizerRule("adamw"),
    "sign": OptimizerRule("sign"),
    "lion": OptimizerRule("lion"),
    "soap": OptimizerRule("soap"),
    "shampoo": OptimizerRule("shampoo"),
    "adafactor": OptimizerRule("adafactor", weight=1),
    "adamh": OptimizerRule("adamh", weight=1),
    "muonh": OptimizerRule("muonh", scale="rms", weight=1),
    "normuon": OptimizerRule("normuon", scale="rms"),
    **{f"muon:{scale}": OptimizerRule(f"muon:{scale}", scale=scale) for scale in MUON_SCALES},
}


def read_optimizer(name: OptimizerRule | str) -> OptimizerRule:
    """A registered optimizer; plain `muon` is its original scale, `muon:shape`."""
    if isinstance(name, OptimizerRule):
        return name
    key = "muon:shape" if name.lower() == "muon" else name.lower()
    if key not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[key]


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


def read_parametrization(text: Parametrization | str) -> Parametrization:
    """A table name in any case, or `a=0,0,0;b=0,1/2,1/2` with an optional `;c=...`."""
    if isinstance(text, Parametrization):
        return text
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


# -- The largest stable learning rates


@dataclass(frozen=True)
class Solution:
    """Learning rate `d^{-c}`, decoupled weight decay `d^{-weight_decay}` and epsilon `d^{-epsilon}` per role.

    The weight decay keeps learning rate times decay fixed; epsilon follows the size of the gradient.
    """

    c: Exponents
    weight_decay: Exponents
    epsilon: Exponents
    feature_change: Fraction


def solve(
    parametrization: Parametrization | str,
    optimizer: OptimizerRule | str = "adam",
    alignment: Alignment | str = ALIGNMENTS["full"],
) -> Solution:
    """The largest stable learning-rate exponents; the initialization must be stable (eqs. 6 to 8)."""
    parametrization, alignment = read_parametrization(parametrization), read_alignment(alignment)
    optimizer = read_optimizer(optimizer)
    initial = parametrization.initial()
    if initial.embedding != 0 or initial.hidden != HALF or initial.readout < HALF:
        raise InputError(f"a + b = {initial}: a stable initialization needs 0, 1/2 and at least 1/2; see classify")
    if alignment.omega_hidden > HALF:
        raise InputError(
            f"omega_hidden = {alignment.omega_hidden}: above 1/2 the change grows with every hidden layer, "
            "and no learning rate is stable (eq. 23)"
        )
    r = max(Fraction(0), alignment.omega_readout - initial.readout)
    reach = {
        "embedding": r,
        "hidden": r + optimizer.alpha("hidden", max(alignment.alpha_hidden, alignment.u_hidden - r)),
        "readout": max(alignment.alpha_readout, alignment.u_readout - r),
    }
    gradient = gradient_exponents(parametrization)
    c = []
    for role in Exponents._fields:
        a, b, g = (getattr(values, role) for values in (parametrization.a, parametrization.b, gradient))
        c.append(reach[role] - a - optimizer.update(role, b, Fraction(0), g))
    rates = Exponents(*c)
    return Solution(rates, Exponents(*(-value for value in rates)), gradient, r)


def gradient_exponents(parametrization: Parametrization) -> Exponents:
    """`g`: RMS of the weight gradient is `d^{-g}` after a stable initialization (eq. 10)."""
    a, outer = parametrization.a, parametrization.initial().readout
    return Exponents(outer + a.embedding, outer + a.hidden, a.readout)
