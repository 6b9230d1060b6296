"""How the rows of an attention matrix overlap with themselves and with each other, from the variance of the scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from sigprop.theory.ops.softmax import mean_overlap

if TYPE_CHECKING:
    from sigprop.theory.ops.attention.op import Attention

# Regressions on Monte Carlo of softmax weights. Both should tend to 1 - 1/n: see `doubts`.
_KEY_FIT = (0.762, 1.068, 0.192, -0.122)
_QUERY_FIT = (1.443, 1.065, 0.153, -0.127)
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
    def key_factor(self) -> Tensor:
        """Part of the score gradient that survives the softmax Jacobian, on the way to the keys."""
        return _logistic(self.count, self.own_overlap, _KEY_FIT)

    @cached_property
    def query_factor(self) -> Tensor:
        """The same on the way to the queries."""
        return _logistic(self.count, self.own_overlap, _QUERY_FIT)

    def doubts(self, width: float) -> tuple[float, float, float]:
        """What is left open of the gradients of queries, keys and values: how far the fits miss their limits at small
        scores, which counts for few keys, and what grows with the scores and with `1 / width`."""
        several, few = self.count > 1.0, self.count.clamp_min(2.0)
        grown = SCORES * float(self.variance.mean()) + WIDTHS / width
        missed = (1.0 - _logistic(few, 1.0 / few, fit) / (1.0 - 1.0 / few) for fit in (_QUERY_FIT, _KEY_FIT))
        query, key = (float(item[several].mean()) + grown if bool(several.any()) else 0.0 for item in missed)
        return query, key, 0.0

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


def _logistic(count: Tensor, overlap: Tensor, fit: tuple[float, float, float, float]) -> Tensor:
    bounded = torch.minimum(overlap, torch.full_like(overlap, 1.0 - 1e-9)).clamp_min(1e-30)
    odds, excess = torch.logit(bounded), (count * bounded).clamp_min(1.0).log()
    value = torch.sigmoid(-(fit[0] + fit[1] * odds + fit[2] * excess + fit[3] * odds * excess))
    return torch.where(count > 1.0, value, torch.zeros_like(value))
