r"""Optimizers as rules for the size of an update.

With gradient `RMS(W'_l) = d^{-g_l}` the entries of the update are `d^{-e_l}`,

    sgd, momentum           e = c + g
    adam, adamw, sign, lion e = c            (also soap, and shampoo grafted to adam)
    adafactor, adamh        e = c + b            (relative step: times RMS(W))
    muon                    e = c + (entry of the orthogonal factor) - (exponent of its scale)

and the change of the layer's output is `d^{-a} RMS(dW h) = d^{-(a + e - alpha)}`. The orthogonal factor of a
hidden matrix preserves the norm of what it acts on, so its response does not depend on the alignment: a full
rank factor has entries d^{-1/2} and alpha = 1/2, a factor of rank one has entries 1/d and alpha = 1.

AdamH and MuonH turn a matrix by an angle and keep its norm, so that their step is relative to it; NorMuon gives the
rows of Muon's update one size. SOAP is Adam in another basis; Shampoo is meant as it is run, with each tensor's update
given the size of Adam's (without that it is `muon:none`). Muon's scales, for a matrix of `rows` outputs and `columns`
inputs: `none` 1; `shape` sqrt(max(1, rows/columns)) (torch's "original"); `rms` sqrt(max(rows, columns)) (torch's
"match_rms_adamw", Megatron's "spectral"); `unit` sqrt(rows/columns) (Megatron's "unit_rms_norm").
Reference: Stratos, eq. (12); for Muon derived here from the singular values of the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sigprop.errors import UnknownNameError
from sigprop.theory.exponents.roles import HALF, Exponents, exponents

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

    def gauge_shift(self) -> int:
        """By how many `theta` the exponent c falls when (a, b) -> (a + theta, b - theta)."""
        return 1 + self.gradient - self.weight

    def width_invariant(self) -> bool:
        """True when, in an orthogonal optimizer, hidden layers keep one learning rate at all widths."""
        return self.orthogonal and MUON_SCALES[self.scale].hidden == 0


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


def read_optimizer(name: str) -> OptimizerRule:
    """A registered optimizer; plain `muon` is its original scale, `muon:shape`."""
    key = "muon:shape" if name.lower() == "muon" else name.lower()
    if key not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[key]
