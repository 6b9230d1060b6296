r"""Width rules: how far the size of a weight, of its update and of its gradient move from base to model.

For a parametrization with readout exponent `A` (initial size d^{-A}), features that change like d^{-r} and
alignment alpha, with `m_in` and `m_out` the ratios of fan-in and fan-out to the base (no forward multiplier):

                 embedding, vector      hidden                       readout
    weight       1                      m_in^{-1/2}                  m_in^{-A}
    update       m_out^{-r}             m_in^{-alpha} m_out^{-r}     m_in^{-alpha}
    gradient     m_out^{-A}             m_out^{-A}                   1

`A = 1, r = 0` is muP, `A = (1+s)/2, r = (1-s)/2` the family from neural-tangent (s = 0) to maximal-update
(s = 1). An optimizer turns them into its own multipliers (`recipes/optimizers.py`).
References: Stratos, eqs. (6) to (24); Dinan, Yaida, Zhang, Effective Theory of Transformers, eqs. (1.25) to (1.116).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from sigprop.errors import UnknownNameError, require
from sigprop.plans.multipliers import Sizes
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.theory.exponents import ALIGNMENTS, Alignment, Parametrization, exponents, read_alignment, solve


@dataclass(frozen=True)
class WidthRule:
    """Readout exponent `A`, features' change `r`, alignment of hidden and readout updates."""

    name: str
    readout: float
    change: float
    alpha_hidden: float
    alpha_readout: float

    def factors(self, dims: Dimensions) -> Sizes:
        m_in, m_out = dims.fan_in, dims.fan_out
        if dims.role == "readout":
            return Sizes(m_in**-self.readout, m_in**-self.alpha_readout, 1.0)
        inward = Sizes(1.0, m_out**-self.change, m_out**-self.readout)
        if dims.role == "hidden":
            return replace(inward, weight=m_in**-0.5, update=inward.update * m_in**-self.alpha_hidden)
        return inward

    @property
    def scales_attention(self) -> bool:
        """Queries and keys align at order one only where features do and the readout allows it: muP."""
        return self.readout >= 1.0

    def tied_multiplier(self, fan_in: float) -> float:
        """Forward factor of a readout whose weight is the embedding: `m_in^{-A}`."""
        return fan_in**-self.readout


def width_rule(name: str, alignment: Alignment | str | None = None) -> WidthRule:
    """`mup`, `neural_tangent`, `sp`, or `meta:s` with s between 0 and 1.

    `sp` keeps the standard initialization and takes the learning rates that full alignment allows, with an
    unaligned readout (Everett et al.); the others assume that the readout aligns.
    """
    if name == "sp":
        outer, assumed = Fraction(1, 2), ALIGNMENTS["full"]
    else:
        outer, assumed = (1 + _meta_parameter(name)) / 2, ALIGNMENTS["readout"]
    if alignment is not None:
        assumed = read_alignment(alignment) if isinstance(alignment, str) else alignment
    parametrization = Parametrization(exponents(0, 0, 0), exponents(0, "1/2", outer))
    solution = solve(parametrization, "adam", assumed)
    change = solution.feature_change
    return WidthRule(name, float(outer), float(change), float(solution.c.hidden - change), float(solution.c.readout))


WIDTH_RULES = ("mup", "neural_tangent", "sp")


def _meta_parameter(name: str) -> Fraction:
    known = {"mup": Fraction(1), "neural_tangent": Fraction(0)}
    if name in known:
        return known[name]
    if not name.startswith("meta:"):
        raise UnknownNameError("parametrization", name, [*WIDTH_RULES, "meta:1/2"])
    try:
        s = Fraction(name.partition(":")[2])
    except (ValueError, ZeroDivisionError):
        s = Fraction(-1)
    require(0 <= s <= 1, "meta-parameter s", name, "meta:s with s between 0 and 1, like meta:1/2")
    return s
