"""Tied embeddings: the output matrix meets its own rows, carried to the top by the skip path.

The mean logit of a token's own id (see `OwnLogits`) shifts the variance of the logits and the probability
`a_t = e^mu / (V - 1 + e^mu)` of the own id, and gives the gradient at `h_t` a mean along `h_t` itself, where a final
norm removes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Graph, Node, Weight
from sigprop.theory import Dense, Signal
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.sources import equal_ids
from sigprop.theory.ops.tied_head import OwnLogits, contact_overlaps
from sigprop.theory.states import ALL_TRANSFORMED

SLOPE = 0.9


@dataclass(frozen=True)
class CarriedRows:
    """How much of its own embedding row each position carries, and the id of the row."""

    share: Tensor
    ids: Tensor


@dataclass(frozen=True, eq=False)
class TiedLinear(Linear):
    """A linear map whose weights are a table, of an input that may carry rows of it, read at the nodes `tables`.

    Forward   as Linear, plus `same mu_t mu_t' / fan_out`: each position's own id
    """

    carries = ALL_TRANSFORMED

    tables: tuple[tuple[Node, CarriedRows], ...] = ()
    contact: TiedLogits | None = None

    def bound(self, states: Evaluation, node: Node) -> TiedLinear:
        carried = _carried(states, states.nodes, node.inputs[0], dict(self.tables))
        if carried is None:
            return replace(self, contact=None)
        x = states.signal(node.inputs[0])
        level, others = x.kernel.diagonal, super().forward(x).kernel.diagonal
        more = {"ids": carried.ids, "row_width": self.fan_in}
        contact = TiedLogits.carried(carried.share, level, others, self.variance, self.fan_in, **more)
        return replace(self, contact=contact)

    def forward(self, *inputs: Signal) -> Signal:
        made, contact = super().forward(*inputs), self.contact
        return made if contact is None else contact.added_to(made, equal_ids(contact.ids))


def tied(graph: Graph, op: Linear, weight: Weight) -> Linear:
    """A linear map as one that may meet its own rows, where its weight is a table that was looked up."""
    names = {name for name, _ in weight.roots}
    read = [(made, ids.flatten()) for made, (name, ids) in graph.lookups.items() if name in names]
    tables = tuple((made, CarriedRows(torch.ones(len(ids), dtype=torch.float64), ids)) for made, ids in read)
    return TiedLinear(**vars(op), tables=tables) if tables and type(op) is Linear else op


def share_carried(states: Evaluation, source: Node, target: Node) -> Tensor:
    """How much of a node another one, made of it, holds, position by position."""
    nodes, mean = states.nodes, states.signal(source).mean
    start = next(place for place in range(len(nodes) - 1, -1, -1) if nodes[place] is source)
    found = _carried(
        states, nodes[start:], target, {source: CarriedRows(torch.ones_like(mean), torch.arange(mean.numel()))}
    )
    return torch.zeros_like(mean) if found is None else found.share


def _carried(
    states: Evaluation, nodes: list[Node], target: Node, sources: dict[Node, CarriedRows]
) -> CarriedRows | None:
    """Follow the rows forward along everything that keeps them: skips, norms, scales and views."""
    found: dict[Node, CarriedRows] = {}
    for node in nodes:
        if node in sources:
            found[node] = sources[node]
        elif any(above in found for above in node.inputs):
            kept = _kept(states, node, [found.get(above) for above in node.inputs])
            if kept is not None:
                found[node] = kept
        if node is target:
            break
    return found.get(target)


def _kept(states: Evaluation, node: Node, above: list[CarriedRows | None]) -> CarriedRows | None:
    """What a node carries, given what its inputs carry."""
    op, output, shares, ids = states.op(node), states.signal(node), [], None
    signals = [states.signal(item) for item in node.inputs]
    for number, rows in enumerate(above):
        held = None if rows is None else op.carried(number, output, *signals)
        if rows is not None and held is not None:
            shares.append(held.share * held.of(rows.share))
            ids = held.of(rows.ids) if ids is None else ids
    return None if ids is None else CarriedRows(torch.stack(torch.broadcast_tensors(*shares)).sum(0), ids)


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


@dataclass(frozen=True, kw_only=True)
class TiedLogits(OwnLogits):
    """At the logits of given ids, of rows with `row_width` entries.

    `bent`: a function with a smaller slope at the own logit lies between, which the gradient does not know of.
    """

    ids: Tensor
    row_width: int
    bent: bool = False

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
        probability = self.probability(classes)
        same, hit = equal_ids(self.ids), equal_ids(self.ids, labels)
        both, target = contact_overlaps(probability, same, hit, Dense(shared), classes)
        return both.values, target.values, probability[0]
