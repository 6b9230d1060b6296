"""What a head that is tied to the embedding knows of its logits: those of each position's own id."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sigprop.theory import Dense
from sigprop.theory.ops.embedding import equal_ids
from sigprop.theory.ops.tied_head import contact_overlaps, own_probability

COUNTS = 0.4
"""Own ids among the labels, as a share of the width, from which on they count."""


@dataclass(frozen=True)
class TiedLogits:
    """At the logits: mean and variance of the logit of each position's own id, and the variance of the others; `width`
    is that of the rows.

    `bent`: a function with a smaller slope at the own logit lies between, which the gradient does not know of.
    """

    logit: Tensor
    spread: Tensor
    others: Tensor
    ids: Tensor
    width: int
    bent: bool = False

    def are_labels(self, labels: Tensor) -> bool:
        """Whether so many positions have their own id for a label that it counts. The gradient of each then lies along
        its own row, as its signal does: sums over `n` such positions of gradient times signal are larger by about
        `n / (4 width)` than what averages over pairs of positions tell."""
        return int((self.ids == labels).sum()) > COUNTS * self.width

    def probability(self, classes: int) -> tuple[Tensor, Tensor]:
        """First and second moment of the own probability, over the fluctuation of the own logit."""
        return own_probability(self.logit, self.spread, self.others, classes)

    def along(self, labels: Tensor, own: Tensor) -> Tensor:
        """`E sum_v l_sv (p_tv - y_tv)` of the mean logits: the own id of `t` and its label, where `s` carries them."""
        same, hit = (self.ids[:, None] == self.ids).double(), (self.ids[:, None] == labels).double()
        return self.logit[:, None] * (same * own - hit)

    def overlaps(self, labels: Tensor, shared: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """`E sum_v p_tv p_t'v`, `E p_t(y_t')` and the own probability, with the shifted own logit."""
        probability = self.probability(classes)
        same, hit = equal_ids(self.ids), equal_ids(self.ids, labels)
        both, target = contact_overlaps(probability, same, hit, Dense(shared), classes)
        return both.values, target.values, probability[0]
