"""Attention scores of a blueprint: their variance, the entropy of the weights, and the largest weight.

Queries and keys of a head are normal vectors with the predicted kernels, so that a score has variance
`scale^2 d K_q[i, i] K_k[j, j]`, of which softmax sees what keys do not share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sigprop.blueprints.base import Tape
from sigprop.blueprints.entropy import Sharpness, softmax_sharpness
from sigprop.graph.graph import Node
from sigprop.results import SiteRow
from sigprop.theory import Evidence
from sigprop.theory.kernels import Exchangeable, Kernel
from sigprop.theory.ops.attention import Attention
from sigprop.theory.ops.rms_norm import RMSNorm

POSITIONS = 12
"""Queries of a causal mask at which entropy is evaluated; between them it is interpolated in log position."""


def score_rows(tape: Tape, depth: int | None = None) -> list[SiteRow]:
    """One row per attention, named `...attention.scores`; of a tape whose grid axis is the layer, one per layer."""
    rows = []
    for node in tape.graph.nodes:
        if not isinstance(node.op, Attention):
            continue
        columns, evidence = _columns(tape, node, node.op), tape.signal(node).evidence
        if depth is None:
            rows.append(_row(evidence, node.parameters, 0, columns, ()))
            continue
        wide = {name: np.broadcast_to(values, (depth,)) for name, values in columns.items()}
        for layer in range(depth):
            rows.append(_row(evidence, f"blocks.{layer}" + node.parameters.removeprefix("blocks"), layer, wide, layer))
    return rows


def placed(sites: list[SiteRow], scores: list[SiteRow]) -> list[SiteRow]:
    """Rows of scores before the row of the attention that computes them."""
    waiting = {row.name.removesuffix(".scores"): row for row in scores}
    return [item for row in sites for item in (waiting.pop(row.name, None), row) if item is not None]


def _row(evidence: Evidence, name: str, depth: int, columns: dict[str, Any], place: Any) -> SiteRow:
    variance, entropy, largest = (float(columns[key][place]) for key in ("variance", "entropy", "largest_weight"))
    row = SiteRow(name, depth, 0.0, variance, status=str(evidence.status), reason=evidence.reason)
    row.extras = {"entropy": entropy, "largest_weight": largest}
    return row


def _columns(tape: Tape, node: Node, op: Attention) -> dict[str, np.ndarray]:
    query, key = (tape.signal(source).kernel for source in node.inputs[:2])
    reach = torch.as_tensor(op.score_scale, dtype=torch.float64) ** 2 * op.head_width
    width = None if isinstance(node.inputs[0].op, RMSNorm) else op.head_width
    variance = reach * _allowed_average(query, key, op.is_causal)
    counts = _positions(key.tokens) if op.is_causal else [key.tokens]
    found = [
        softmax_sharpness((reach * _seen(query, key, count, op.is_causal)).numpy(), count, width) for count in counts
    ]
    return {"variance": variance.numpy(), **_over_queries(found, counts, key.tokens)}


def _allowed_average(query: Kernel, key: Kernel, causal: bool) -> Tensor:
    """Average of `K_q[i, i] K_k[j, j]` over the pairs that may meet."""
    left, right = query.diagonal, key.diagonal
    if isinstance(query, Exchangeable) or isinstance(key, Exchangeable):
        return left * right
    if not causal:
        return left.mean(-1) * right.mean(-1)
    return (left * right.cumsum(-1)).sum(-1) / (key.tokens * (key.tokens + 1) / 2)


def _seen(query: Kernel, key: Kernel, count: int, causal: bool) -> Tensor:
    """`K_q[i, i]` times the variance over `count` keys, of the query that sees so many (of all, where all see all)."""
    if isinstance(query, Exchangeable) and isinstance(key, Exchangeable):
        return (query.diagonal * (key.diagonal - key.different)).clamp_min(0.0)
    pairs = key.dense().values[..., :count, :count]
    diagonal = query.dense().diagonal
    own = diagonal[..., count - 1] if causal else diagonal.mean(-1)
    apart = pairs.diagonal(dim1=-2, dim2=-1).mean(-1) - pairs.mean((-2, -1))
    return (own * apart * count / max(count - 1, 1)).clamp_min(0.0)


def _positions(tokens: int) -> list[int]:
    return sorted({round(tokens ** (place / (POSITIONS - 1))) for place in range(POSITIONS)})


def _over_queries(found: list[Sharpness], counts: list[int], tokens: int) -> dict[str, np.ndarray]:
    """Averages over all queries."""
    stacks = {"entropy": [item.entropy for item in found], "largest_weight": [item.largest for item in found]}
    if len(counts) == 1:
        return {name: values[0] for name, values in stacks.items()}
    places, knots = np.log(np.arange(1, tokens + 1)), np.log(counts)
    weights = np.stack([np.interp(places, knots, row) for row in np.eye(len(counts))]).mean(1)
    return {name: np.tensordot(weights, np.stack(values), 1) for name, values in stacks.items()}
