r"""Width rules: how far the size of a weight, of its update and of its gradient move from base to model.

For a parametrization with readout exponent `A` (initial size d^{-A}), features that change like d^{-r} and
alignment alpha, with `m_in` and `m_out` the ratios of fan-in and fan-out to the base (no forward multiplier):

                 embedding, vector      hidden                       readout
    weight       1                      m_in^{-1/2}                  m_in^{-A}
    update       m_out^{-r}             m_in^{-alpha} m_out^{-r}     m_in^{-alpha}
    gradient     m_out^{-A}             m_out^{-A}                   1

References: Stratos, eqs. (6) to (24); Dinan, Yaida, Zhang, Effective Theory of Transformers, eqs. (1.25) to (1.116).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sigprop.plans.exponents import Alignment, read_alignment
from sigprop.plans.multipliers import Sizes
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.registry import Registry


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

    @property
    def aligned_change(self) -> float:
        """Exponent of the change of logits where the readout aligns with the features: `d d^{-A} d^{-r}`."""
        return 1.0 - self.readout - self.change


WIDTH_RULES: Registry[Callable[..., WidthRule]] = Registry("parametrization", __name__, "Of a family: meta:1/2.")


def width_rule(name: str, alignment: Alignment | str | None = None) -> WidthRule:
    """A rule by name: `mup`, `neural_tangent`, `sp`, or `meta:s` with s between 0 and 1."""
    kind, _, argument = name.partition(":")
    assumed = read_alignment(alignment) if isinstance(alignment, str) else alignment
    return WIDTH_RULES[kind](assumed, *[argument] * bool(argument))
