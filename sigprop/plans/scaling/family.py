r"""The neural-tangent to maximal-update family as absolute factors per group of a Transformer.

With fan-in and fan-out of the group's matrix (a one-hot input or a bias has fan-in 1) and width n:

    init variance   1 / fan_in                             (head: 1 / n^{1+s})
    SGD rate        n^s / fan_in                           (head and its bias: without n^s)
    AdamW rate      n^{s/2} / (fan_in sqrt(fan_out))       (head and its bias: without n^{s/2})

s = 0 is neural-tangent, s = 1 maximal-update scaling; each factor is multiplied by an order-one constant.
Reference: Dinan, Yaida, Zhang, Effective Theory of Transformers at Initialization, eqs. (1.25) to (1.34), (1.99)
to (1.116), footnote 26.
"""

from __future__ import annotations

from dataclasses import dataclass

from sigprop.errors import UnknownNameError, require

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
