"""A head tied to the embedding: the output matrix meets its own rows, carried to the top by the skip path."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.linear import Linear
from sigprop.theory.states import ALL_TRANSFORMED, Directions, Gradient, Signal, ended

Self = TypeVar("Self", bound="OwnLogits")


@dataclass(frozen=True, kw_only=True)
class OwnLogits:
    """With `h_t = c_t E_id(t) + rest` the logit of a token's own id has the mean `mu_t = c_t d variance`.

    Per token: mean and variance of the own logit, variance of the other logits, and the part of the energy of `h`
    along its row.
    """

    logit: Tensor
    spread: Tensor
    others: Tensor
    energy: Tensor

    @classmethod
    def carried(
        cls: type[Self], share: Tensor, level: Tensor, others: Tensor, variance: Tensor | float, width: int, **more: Any
    ) -> Self:
        """Of tokens of mean square `level` that hold the share `c` of their rows of `width` entries."""
        logit = share * width * variance
        energy = (share**2 * variance / level.clamp_min(1e-300)).clamp(0.0, 1.0)
        spread = others * (1.0 - energy) + 2.0 * logit**2 / width
        return cls(logit=logit, spread=spread, others=others, energy=energy, **more)

    def probability(self, classes: int) -> tuple[Tensor, Tensor]:
        """First and second moment of the own probability, over the fluctuation of the own logit."""
        return own_probability(self.logit, self.spread, self.others, classes)

    def added_to(self, made: Signal, same: Kernel) -> Signal:
        """The logits with what the own ids bring."""
        own = same * same.outer(self.logit, self.logit)
        return replace(made, kernel=made.kernel + own.scale(1.0 / made.width))


@dataclass(frozen=True, kw_only=True)
class Contact(OwnLogits):
    """Over pairs: `same` is `P(id_t = id_t')`, `hit` is `P(id_t = target_t')`."""

    same: Kernel
    hit: Kernel

    @classmethod
    def of(cls, h: Signal, variance: Tensor | float, share: Tensor, same: Kernel, hit: Kernel) -> Contact:
        level = h.kernel.diagonal
        variance = level * 0.0 + h.kernel.per_token(variance)
        return cls.carried(share, level, level * h.width * variance, variance, h.width, same=same, hit=hit)

    def overlaps(self, shared: Kernel, classes: int) -> tuple[Kernel, Kernel]:
        return contact_overlaps(self.probability(classes), self.same, self.hit, shared, classes)


def own_probability(logit: Tensor, spread: Tensor, others: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """First and second moment of `e^mu / (V - 1 + e^mu)`, over the fluctuation of the own logit `mu`."""
    nodes, weights = (torch.from_numpy(item) for item in np.polynomial.hermite_e.hermegauss(15))
    drawn = logit[..., None] + spread.sqrt()[..., None] * nodes - others[..., None] / 2
    own = torch.sigmoid(drawn - math.log(max(classes - 1, 1)))
    weights = weights / weights.sum()
    return own @ weights, own**2 @ weights


def contact_overlaps(
    probability: tuple[Tensor, Tensor], same: Kernel, hit: Kernel, shared: Kernel, classes: int
) -> tuple[Kernel, Kernel]:
    """`E sum_v p_tv p_t'v` and `E p_t(y_t')` with the own ids' probabilities; `shared` is the first without them."""
    own, square = probability
    rest = 1.0 - own
    mixed = (shared.outer(own, rest) + shared.outer(rest, own)).values / classes
    both = shared.outer(rest, rest) * shared
    both = both.like(both.values + same.values * both.outer(own, own).values + (1.0 - same.values) * mixed)
    both = both.add_diagonal((square - own**2) * (1.0 + shared.diagonal))
    target = hit.values * shared.left(own) + (1.0 - hit.values) * shared.left(rest) / classes
    return both, shared.like(target)


@dataclass(frozen=True)
class TiedHead(Linear):
    """`y = E h`, the weights being an embedding whose rows `h` carries.

    Forward   as Linear, plus `same mu_t mu_t' / fan_out`
    Backward  as Linear; part of the gradient of the cross-entropy points along `h` itself, where a norm removes it

    With `mu_t` the logit of the own token that the carried rows make (see `OwnLogits`). The gradients of the head and
    of the table are taken as independent.
    """

    carries = ALL_TRANSFORMED.but(common=ended("independent weights make independent channels"))

    by_position = False

    contact: Contact = field(kw_only=True)

    def forward(self, *inputs: Signal) -> Signal:
        return self.contact.added_to(super().forward(*inputs), self.contact.same)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (made,) = super().backward(gradient, output, *inputs)
        own, _ = self.contact.probability(self.fan_out)
        hit = self.contact.hit.diagonal
        along = (own**2 - 2.0 * own * hit + hit) * self.contact.energy
        kernel = gradient.kernel
        energy = kernel.level * self.fan_out * kernel.tokens**2
        radial = 1.0 + self.fan_in * kernel.token_average(along) / energy.clamp_min(1e-300)
        return (replace(made, directions=Directions(radial)),)
