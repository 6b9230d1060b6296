"""Sums of two tensors, and positions one after another, with what they have in common."""

from __future__ import annotations

import math
from dataclasses import replace

from sigprop.capture.capture import Capture
from sigprop.capture.shared_parts import SharedParts
from sigprop.capture.shared_weights import IN_STEP, MATTERS
from sigprop.theory import Node
from sigprop.theory.ops.cat_positions import CatPositions
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import Residual
from sigprop.theory.ops.shared_residual import Piece, SharedResidual


def summed(capture: Capture, op: Residual, first: Node, second: Node) -> Node:
    """The sum of two tensors; in doubt where outputs of one weight are large parts of both."""
    op = replace(op, rows_in_branch=_brings_rows(capture, second) and not _brings_rows(capture, first))
    made = _added(capture, op, first, second)
    if not capture.preview:
        _note_sum(capture, made, first, second)
    return made


def _brings_rows(capture: Capture, node: Node) -> bool:
    """Whether a tensor is a sum with rows of a table among its parts."""
    return bool(capture.embedded) and not capture.embedded.keys().isdisjoint(capture.shared_parts.all_above(node))


def have_in_common(capture: Capture, first: Node, second: Node) -> bool:
    """Whether two tensors are sums with one part, or with outputs of one weight."""
    parts = capture.shared_parts
    return bool(parts.of(first) & parts.of(second)) or bool(capture.weights_behind.in_common(first, second))


def side_by_side(capture: Capture, *nodes: Node) -> Node:
    """Positions one after another; in doubt where two tensors are outputs of one weight, which have more in common."""
    pairs = ((first, second) for number, second in enumerate(nodes) for first in nodes[:number])
    doubted = not capture.preview and any(capture.weights_behind.in_common(*pair) for pair in pairs)
    return _joined(capture, *nodes, doubt=IN_STEP if doubted else "")


def _added(capture: Capture, op: Residual, first: Node, second: Node) -> Node:
    """The sum of two tensors, with what they have in common."""
    parts = capture.shared_parts
    if capture.preview or not parts.of(first) & parts.of(second):
        return capture.apply(op, first, second)
    found = parts.in_common(first, second)
    pieces = tuple((one, other) for _, one, other in found)
    made = SharedResidual(op.skip, op.branch, pieces, rows_in_branch=op.rows_in_branch)
    return capture.apply(made, first, second, *(node for node, _, _ in found))


def _joined(capture: Capture, *nodes: Node, doubt: str = "") -> Node:
    """Positions of several tensors one after another, with what they have in common."""
    parts = capture.shared_parts
    found: list[tuple[Node, tuple[int, Piece, int, Piece]]] = []
    for second, other in enumerate(nodes):
        for first, node in enumerate(nodes[:second]):
            if not capture.preview and parts.of(node) & parts.of(other):
                found += [(part, (first, one, second, two)) for part, one, two in parts.in_common(node, other)]
    op = CatPositions(len(nodes), tuple(pieces for _, pieces in found), doubt)
    return capture.apply(op, *nodes, *(part for part, _ in found))


def _note_sum(capture: Capture, made: Node, first: Node, second: Node) -> None:
    pairs = capture.weights_behind.in_common(first, second)
    if not pairs:
        return
    mine, theirs = (_sizes(capture.shared_parts, node) for node in (first, second))
    scale = abs(float(made.op.skip * made.op.branch)) if isinstance(made.op, Residual) else 1.0
    product = sum(mine[one] * theirs[other] for one, other in pairs) * scale
    if 2.0 * product > MATTERS * float(made.signal.kernel.diagonal.mean()):
        capture.doubt(made, IN_STEP)


def _sizes(parts: SharedParts, node: Node) -> dict[Node, float]:
    """Root of the mean square of what a node holds of each of its parts."""
    found = {}
    for part, pieces in parts.pieces(node, parts.ends(node)).items():
        square = sum(float((item.share**2 * part.signal.kernel.diagonal[item.index]).mean()) for item in pieces)
        found[part] = math.sqrt(max(square, 0.0))
    return found


def note_return(capture: Capture, made: Node) -> None:
    """Doubt a linear map of what it made itself: `P^T P x` is not small."""
    if not isinstance(made.op, Linear) or not made.inputs:
        return
    behind, parts, source = capture.weights_behind, capture.shared_parts, made.inputs[0]
    if not behind.used_before(made):
        return
    own = behind.own(made)
    if any(behind.own(part) & own for part in parts.ends(source)):
        capture.doubt(made, IN_STEP)
