"""Tied embeddings: the output matrix meets its own rows, carried to the top by the skip path.

With `h_t = c_t E_id(t) + rest` the logit of a token's own id has the mean `mu_t = c_t d sigma^2` instead of zero. This
shifts the variance of the logits and the probability `a_t = e^mu / (V - 1 + e^mu)` of the own id, and gives the
gradient at `h_t` a mean along `h_t` itself, where a final norm removes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.record import Weight
from sigprop.capture.tied_logits import TiedLogits
from sigprop.theory import Dense, Node
from sigprop.theory.ops.linear import Linear

SLOPE = 0.9


@dataclass(frozen=True)
class CarriedRows:
    """How much of its own embedding row each position carries, and the id of the row."""

    share: Tensor
    ids: Tensor


def meet(capture: Capture, node: Node, weight: Weight) -> None:
    """Called on every linear map: if its weight is an embedding whose rows its input carries, correct its state."""
    names = {name for name, _ in weight.roots()}
    sources = {made: ids for made, (name, ids) in capture.embedded.items() if name in names}
    if not sources or not isinstance(node.op, Linear):
        return
    carried = _carried(capture.tape.nodes, node.inputs[0], sources)
    if carried is None:
        return
    signal, variance = node.inputs[0].signal, weight.distribution.variance
    logit = carried.share * node.op.fan_in * variance
    energy = carried.share**2 * variance / signal.kernel.diagonal.clamp_min(1e-300)
    energy = energy.clamp(0.0, 1.0)
    others = node.signal.kernel.diagonal
    spread = others * (1.0 - energy) + 2.0 * logit**2 / node.op.fan_in
    capture.contacts[node] = TiedLogits(logit, spread, others, carried.ids, node.op.fan_in)
    same = (carried.ids[:, None] == carried.ids).double()
    values = node.signal.kernel.values + same * logit[:, None] * logit / node.op.fan_out
    node.signal = replace(node.signal, kernel=Dense(values))


def share_carried(capture: Capture, source: Node, target: Node) -> Tensor:
    """How much of a node another one, made of it, holds, position by position."""
    nodes, none = capture.tape.nodes, torch.zeros(len(source.signal.mean), dtype=torch.float64)
    start = next(place for place in range(len(nodes) - 1, -1, -1) if nodes[place] is source)
    found = _carried(nodes[start:], target, {source: torch.arange(len(none))})
    return none if found is None else found.share


def _carried(nodes: list[Node], target: Node, sources: dict[Node, Tensor]) -> CarriedRows | None:
    """Follow the rows forward along everything that keeps them: skips, norms, scales and views."""
    found: dict[Node, CarriedRows] = {}
    for node in nodes:
        if node in sources:
            ids = sources[node].flatten()
            found[node] = CarriedRows(torch.ones(len(ids), dtype=torch.float64), ids)
        elif any(above in found for above in node.inputs):
            kept = _kept(node, [found.get(above) for above in node.inputs])
            if kept is not None:
                found[node] = kept
        if node is target:
            break
    return found.get(target)


def _kept(node: Node, above: list[CarriedRows | None]) -> CarriedRows | None:
    """What a node carries, given what its inputs carry."""
    if node.op is None:
        return None
    signals, shares, ids = [item.signal for item in node.inputs], [], None
    for number, rows in enumerate(above):
        held = None if rows is None else node.op.carried(number, node.signal, *signals)
        if rows is not None and held is not None:
            shares.append(held.share * held.of(rows.share))
            ids = held.of(rows.ids) if ids is None else ids
    return None if ids is None else CarriedRows(torch.stack(torch.broadcast_tensors(*shares)).sum(0), ids)


def contact_of(capture: Capture, node: Node) -> TiedLogits | None:
    """The contact of logits that were reshaped, scaled or soft-capped after the head."""
    if node in capture.contacts:
        return capture.contacts[node]
    if not node.inputs:
        return None
    above = contact_of(capture, node.inputs[0])
    if above is None or node.op is None:
        return None
    picked, entry = node.op.picks, node.op.of_entry(above.logit)
    if picked is not None:
        parts = {name: getattr(above, name)[picked] for name in ("logit", "spread", "others", "ids")}
        return replace(above, **parts)
    if entry is None:
        return None
    (logit, slope), (_, at_zero) = entry, node.op.of_entry(torch.zeros_like(above.logit)) or entry
    bent = above.bent or bool((slope / at_zero < SLOPE).any())
    return replace(above, logit=logit, spread=above.spread * slope**2, others=above.others * slope**2, bent=bent)
