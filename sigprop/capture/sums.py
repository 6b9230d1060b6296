"""Sums of two tensors, and positions one after another, with what they have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sigprop.capture.capture import Capture
from sigprop.capture.ensemble import joined
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Doubt, Entries, Node
from sigprop.graph.shared_parts import IN_STEP, MATTERS, own_entries
from sigprop.theory import Signal
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.cat import CatPositions
from sigprop.theory.ops.residual import Residual, SharedResidual


def summed(capture: Capture, op: Residual, first: Node, second: Node) -> Node:
    """The sum of two tensors; in doubt where outputs of one weight are large parts of both."""
    op = replace(op, rows_in_branch=_brings_rows(capture, second) and not _brings_rows(capture, first))
    pairs = () if capture.preview else tuple(capture.weights_behind.in_common(first, second))
    doubts = (SumOfUses(first, second, pairs, abs(float(op.skip * op.branch))),) if pairs else ()
    return _added(capture, op, first, second, doubts)


def entangled(capture: Capture, op: Op, first: Node, second: Node) -> bool:
    """Whether a sum or a product of two tensors has no closed form, for what they have in common."""
    if capture.preview:
        return False
    parts = capture.shared_parts
    if isinstance(op, Residual):
        return parts.beyond(first, second)
    return not parts.reached(first).isdisjoint(parts.reached(second))


def _brings_rows(capture: Capture, node: Node) -> bool:
    """Whether a tensor is a sum with rows of a table among its parts."""
    lookups = capture.graph.lookups
    return bool(lookups) and not lookups.keys().isdisjoint(capture.shared_parts.all_above(node))


def have_in_common(capture: Capture, first: Node, second: Node) -> bool:
    """Whether two tensors are sums with one part, or with outputs of one weight."""
    parts = capture.shared_parts
    return bool(parts.of(first) & parts.of(second)) or bool(capture.weights_behind.in_common(first, second))


def side_by_side(capture: Capture, *nodes: Node) -> Node:
    """Positions one after another, with what they have in common."""
    if capture.preview:
        return capture.apply(CatPositions(), *nodes)
    op, inputs = joined(capture.states, nodes)
    return capture.apply(op, *inputs)


def _added(capture: Capture, op: Residual, first: Node, second: Node, doubts: tuple[Doubt, ...]) -> Node:
    """The sum of two tensors, with what they have in common."""
    parts = capture.shared_parts
    if capture.preview or not parts.of(first) & parts.of(second):
        return capture.apply(op, first, second, doubts=doubts)
    found = parts.in_common(first, second)
    pieces = tuple((one, other) for _, one, other in found)
    made = SharedResidual(op.skip, op.branch, pieces, rows_in_branch=op.rows_in_branch)
    return capture.apply(made, first, second, *(node for node, _, _ in found), doubts=doubts)


@dataclass(frozen=True)
class SumOfUses:
    """The doubt of a sum in which outputs of one weight are large parts of both summands, `pairs` of them."""

    first: Node
    second: Node
    pairs: tuple[tuple[Node, Node], ...]
    scale: float

    def __call__(self, states: Evaluation, made: Signal) -> str:
        mine, theirs = (_sizes(states, node) for node in (self.first, self.second))
        product = sum(mine.get(one, 0.0) * theirs.get(other, 0.0) for one, other in self.pairs) * self.scale
        return IN_STEP if 2.0 * product > MATTERS * float(made.kernel.diagonal.mean()) else ""


def _sizes(states: Evaluation, node: Node) -> dict[Node, float]:
    """Root of the mean square of what a node holds of each of its parts."""
    found, parts = {}, states.shared_parts
    for part, pieces in parts.pieces(node, parts.ends(node)).items():
        level = states.signal(part).kernel.diagonal
        square = sum(float((item.share**2 * level[item.index]).mean()) for item in pieces)
        found[part] = math.sqrt(max(square, 0.0))
    return found


def doubts_of_return(capture: Capture, source: Node, own: frozenset[Entries]) -> tuple[str, ...]:
    """The doubt of a linear map of what it made itself, `own` being what it multiplies with: `P^T P x` is not small."""
    behind = capture.weights_behind
    if not behind.used_before(own):
        return ()
    ends = capture.shared_parts.ends(source)
    return (IN_STEP,) if any(own_entries(part.op, part.weights) & own for part in ends) else ()
