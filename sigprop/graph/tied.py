"""Tied embeddings: the output matrix meets its own rows, carried to the top by the skip path.

The mean logit of a token's own id (see `TiedLogits`) shifts the variance of the logits and the probability
`a_t = e^mu / (V - 1 + e^mu)` of the own id, and gives the gradient at `h_t` a mean along `h_t` itself, where a final
norm removes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Graph, Node, Weight
from sigprop.theory import Dense, Kernel, Signal
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.sources import equal_ids
from sigprop.theory.states import ALL_TRANSFORMED, Status

SLOPE = 0.9
HIDDEN = "a head that meets functions of its own rows"


@dataclass(frozen=True, eq=False)
class TiedLinear(Linear):
    """A linear map whose weights are a table, of an input that may carry rows of it: each node of `tables` has rows of
    some ids.

    Forward   as Linear, plus `same mu_t mu_t' / fan_out`: each position's own id
    """

    carries = ALL_TRANSFORMED

    tables: tuple[tuple[Node, Tensor], ...] = ()
    contact: TiedLogits | None = None
    is_hidden: bool = False
    """Whether the input is a function of rows, and it is not known how much of them it holds."""

    def bound(self, states: Evaluation, node: Node) -> TiedLinear:
        """How much of its own embedding row each position carries, and the id of the row."""
        tables, above = dict(self.tables), node.inputs[0]
        pieces = states.shared_parts.pieces(above, set(tables))
        found = [(piece.share, tables[table][piece.index]) for table, held in pieces.items() for piece in held]
        if not found:
            hidden = not states.shared_parts.reached(above).isdisjoint(tables)
            return replace(self, contact=None, is_hidden=hidden)
        share, ids = sum((share for share, _ in found), start=torch.zeros(())), found[0][1]
        x = states.signal(above)
        level, others = x.kernel.diagonal, super().forward(x).kernel.diagonal
        return replace(self, contact=TiedLogits.carried(share, ids, level, others, self.variance, self.fan_in))

    def forward(self, *inputs: Signal) -> Signal:
        made, contact = super().forward(*inputs), self.contact
        if contact is None:
            return made.note(Status.ASSUMED, HIDDEN) if self.is_hidden else made
        same = equal_ids(contact.ids)
        own = same * same.outer(contact.logit, contact.logit)
        return replace(made, kernel=made.kernel + own.scale(1.0 / made.width))


def tied(graph: Graph, op: Linear, weight: Weight) -> Linear:
    """A linear map as one that may meet its own rows, where its weight is a table that was looked up."""
    names = {name for name, _ in weight.roots}
    tables = tuple((made, ids.flatten()) for made, (name, ids) in graph.lookups.items() if name in names)
    return TiedLinear(**vars(op), tables=tables) if tables and type(op) is Linear else op


def contact_of(states: Evaluation, node: Node) -> TiedLogits | None:
    """The contact of logits that were reshaped, scaled or soft-capped after the head."""
    op: Op | Any = states.op(node)
    if isinstance(op, TiedLinear) and op.contact is not None:
        return op.contact
    if not node.inputs:
        return None
    above = contact_of(states, node.inputs[0])
    if above is None:
        return None
    picked, entry = op.picks, op.of_entry(above.logit)
    if picked is not None:
        parts = {name: getattr(above, name)[picked] for name in ("logit", "spread", "others", "energy", "ids")}
        return replace(above, **parts)
    if entry is None:
        return None
    (logit, slope), (_, at_zero) = entry, op.of_entry(torch.zeros_like(above.logit)) or entry
    bent = above.bent or bool((slope / at_zero < SLOPE).any())
    return replace(above, logit=logit, spread=above.spread * slope**2, others=above.others * slope**2, bent=bent)


COUNTS = 0.4
"""Own ids among the labels, as a share of the width, from which on they count."""


@dataclass(frozen=True)
class TiedLogits:
    """With `h_t = c_t E_id(t) + rest` the logit of a token's own id has the mean `mu_t = c_t d variance`.

    Per token: mean and variance of the own logit, variance of the other logits, and the part of the energy of `h`
    along its row; its id, of rows with `row_width` entries.

    `bent`: a function with a smaller slope at the own logit lies between, which the gradient does not know of.
    """

    logit: Tensor
    spread: Tensor
    others: Tensor
    energy: Tensor
    ids: Tensor
    row_width: int
    bent: bool = False

    @classmethod
    def carried(
        cls, share: Tensor, ids: Tensor, level: Tensor, others: Tensor, variance: Tensor | float, width: int
    ) -> TiedLogits:
        """Of tokens of mean square `level` that hold the share `c` of their rows of `width` entries."""
        logit = share * width * variance
        energy = (share**2 * variance / level.clamp_min(1e-300)).clamp(0.0, 1.0)
        spread = others * (1.0 - energy) + 2.0 * logit**2 / width
        return cls(logit, spread, others, energy, ids, width)

    def are_labels(self, labels: Tensor) -> bool:
        """Whether so many positions have their own id for a label that it counts. The gradient of each then lies along
        its own row, as its signal does: sums over `n` such positions of gradient times signal are larger by about
        `n / (4 width)` than what averages over pairs of positions tell."""
        return int((self.ids == labels).sum()) > COUNTS * self.row_width

    def along(self, labels: Tensor, own: Tensor) -> Tensor:
        """`E sum_v l_sv (p_tv - y_tv)` of the mean logits: the own id of `t` and its label, where `s` carries them."""
        same, hit = (self.ids[:, None] == self.ids).double(), (self.ids[:, None] == labels).double()
        return self.logit[:, None] * (same * own - hit)

    def overlaps(self, labels: Tensor, shared: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """`E sum_v p_tv p_t'v`, `E p_t(y_t')` and the own probability, with the shifted own logit."""
        probability = own_probability(self.logit, self.spread, self.others, classes)
        same, hit = equal_ids(self.ids), equal_ids(self.ids, labels)
        both, target = contact_overlaps(probability, same, hit, Dense(shared), classes)
        return both.values, target.values, probability[0]


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
