r"""Width rules: how far the size of a weight, of its update and of its gradient move from base to model.

For a parametrization with readout exponent `A` (initial size d^{-A}), features that change like d^{-r} and
alignment alpha, with `m_in` and `m_out` the ratios of fan-in and fan-out to the base (no forward multiplier):

                 embedding, vector      hidden                       readout
    weight       1                      m_in^{-1/2}                  m_in^{-A}
    update       m_out^{-r}             m_in^{-alpha} m_out^{-r}     m_in^{-alpha}
    gradient     m_out^{-A}             m_out^{-A}                   1

`A = 1, r = 0` is muP, `A = (1+s)/2, r = (1-s)/2` the family from neural-tangent (s = 0) to maximal-update
(s = 1). An optimizer turns them into its own multipliers (`multipliers.py`).
References: Stratos, eqs. (6) to (24); Dinan, Yaida, Zhang, Effective Theory of Transformers, eqs. (1.25) to (1.116).

`family_factors` has the same family as absolute factors of a Transformer's groups. With fan-in and fan-out of the
group's matrix (a one-hot input or a bias has fan-in 1) and width n:

    init variance   1 / fan_in                             (head: 1 / n^{1+s})
    SGD rate        n^s / fan_in                           (head and its bias: without n^s)
    AdamW rate      n^{s/2} / (fan_in sqrt(fan_out))       (head and its bias: without n^{s/2})

each multiplied by an order-one constant. Reference: eqs. (1.25) to (1.34), (1.99) to (1.116), footnote 26.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sigprop.errors import UnknownNameError, require
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

    def tied_multiplier(self, fan_in: float) -> float:
        """Forward factor of a readout whose weight is the embedding: `m_in^{-A}`."""
        return fan_in**-self.readout


WIDTH_RULES: Registry[Callable[..., WidthRule]] = Registry("parametrization", __name__, "Of a family: meta:1/2.")


def width_rule(name: str, alignment: Alignment | str | None = None) -> WidthRule:
    """A rule by name: `mup`, `neural_tangent`, `sp`, or `meta:s` with s between 0 and 1."""
    kind, _, argument = name.partition(":")
    assumed = read_alignment(alignment) if isinstance(alignment, str) else alignment
    return WIDTH_RULES[kind](assumed, *[argument] * bool(argument))


GROUPS = ("patch", "vocabulary", "position", "Q", "K", "V", "U", "W", "X", "head", "head_bias")


@dataclass(frozen=True)
class GroupFactors:
    """Factors of one group; `init_variance` is 0 for the head's bias, which starts at zero."""

    init_variance: float
    sgd: float
    adamw: float


def family_factors(
    group: str, width: int, s: float = 0.0, *, expansion: float = 4.0, patch: int = 1, outputs: int = 1
) -> GroupFactors:
    """Init variance and relative learning rates of `group` at `width` n, MLP expansion M, n_patch, n_out."""
    if group not in GROUPS:
        raise UnknownNameError("group", group, GROUPS)
    require(0.0 <= s <= 1.0, "s", s, "a number between 0 (neural tangent) and 1 (maximal update)")
    hidden = expansion * width
    fans = {
        "patch": (patch, width),
        "vocabulary": (1, width),
        "position": (1, width),
        "W": (width, hidden),
        "X": (hidden, width),
        "head": (width, outputs),
        "head_bias": (1, outputs),
    }
    fan_in, fan_out = fans.get(group, (width, width))
    inner = not group.startswith("head")
    variance = {"head": width ** -(1.0 + s), "head_bias": 0.0}.get(group, 1.0 / fan_in)
    lift = width**s if inner else 1.0
    return GroupFactors(variance, lift / fan_in, lift**0.5 / (fan_in * fan_out**0.5))
