"""How the rows of an attention matrix overlap with themselves and with each other, from the variance of the scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from sigprop.theory.ops.softmax import mean_overlap, passed

if TYPE_CHECKING:
    from sigprop.theory.ops.attention.op import Attention

_SHARE_LIMIT = 0.4
SCORES, WIDTHS = 0.06, 4.0
"""Error of the gradient of a query by the score variance, and by one over the width of its input: what one block beside
drawn heads shows (tests/blueprints/test_twins.py)."""
Self = TypeVar("Self", bound="AttentionRows")


@dataclass(frozen=True)
class AttentionRows:
    """Statistics of rows over `count` keys; `variance` is that part of the score variance `raw_variance` that survives
    the softmax, `degrees` the effective chi-squared degrees of freedom of it.

    `own_overlap` is `Y = E sum_k A_ik^2`, `effective` the effective score variance `log(n Y)` (saturating), and `share`
    that per degree of freedom.
    """

    raw_variance: Tensor
    variance: Tensor
    count: Tensor
    degrees: float
    own_overlap: Tensor
    effective: Tensor
    share: Tensor

    @classmethod
    def of(cls: type[Self], op: Attention, raw: Tensor, variance: Tensor, count: Tensor, **more: Tensor) -> Self:
        degrees = 1.0 / (1.0 / op.head_width + 2.0 / op.common_width)
        count = count.expand_as(variance)
        own = mean_overlap(count, variance, degrees)
        effective = (count * own).clamp_min(1.0).log()
        share = (effective / degrees).clamp_max(_SHARE_LIMIT)
        return cls(raw, variance, count, degrees, own, effective, share, **more)

    @cached_property
    def passed(self) -> Tensor:
        """Part of the score gradient that survives the softmax Jacobian, for wide heads: see `doubts`."""
        return passed(self.count, self.own_overlap)

    def doubts(self, width: float) -> tuple[float, float, float]:
        """What is left open of the gradients of queries, keys and values: what grows with the scores and with
        `1 / width`, and what narrow heads add, whose longer queries have steeper rows: `2 s / D` of a key's."""
        if not bool((self.count > 1.0).any()):
            return 0.0, 0.0, 0.0
        grown, narrow = SCORES * float(self.variance.mean()) + WIDTHS / width, float(self.share.mean())
        return grown + narrow, grown + 2.0 * narrow, 0.0

    def growth(self, correlation: Tensor) -> Tensor:
        """`n E sum_k A_ik A_jk` of two such rows over the same keys whose queries have the given correlation."""
        return pair_growth(self.count, self.own_overlap, correlation, self.share, self.degrees)


def pair_growth(count: Tensor, overlap: Tensor, correlation: Tensor, share: Tensor, degrees: float) -> Tensor:
    """Wide heads: `(n Y)^rho`, that is `e^{rho s}` for many keys; the rest is the finite-head factor."""
    wide = (count * overlap) ** correlation
    if not math.isinf(degrees):
        joint = (1.0 - correlation * share) ** 2 - share**2
        wide = wide * joint ** (-degrees / 2) * (1.0 - 2.0 * share) ** (correlation * degrees / 2)
    return torch.minimum(wide, count * overlap)


def overlapping_correlation(correlation: Tensor, share: Tensor) -> Tensor:
    """Correlation of two queries, weighted by the overlap of their rows."""
    joint = (1.0 - correlation * share) ** 2 - share**2
    return (correlation * (1.0 - correlation * share) + share) / joint
