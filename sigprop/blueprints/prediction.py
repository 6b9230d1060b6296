"""From a blueprint to its `Profile`."""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import gammaincinv
from torch import Tensor

from sigprop.blueprints.base import Blueprint, Tape, overflow, run
from sigprop.blueprints.repeated import RepeatedBlueprint, unroll
from sigprop.graph.graph import NamedNode, Node
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.stated_errors import stated_by_theory
from sigprop.theory import Evidence, Gradient
from sigprop.theory.kernels import Exchangeable, Kernel
from sigprop.theory.ops.attention import Attention
from sigprop.theory.ops.layer_norm import RMSNorm

ROWS, LEVELS, NODES = 512, 40, 8
LEAST, MOST = 1e-3, 1e4


class Sharpness(NamedTuple):
    """Of the weights of one query, averaged over queries: entropy in nats, and the largest weight."""

    entropy: np.ndarray
    largest: np.ndarray


def softmax_sharpness(variance: np.ndarray, keys: int, head_width: int | None = None) -> Sharpness:
    """Entropy and largest weight among `keys` for every variance of the scores over keys.

    `head_width` is None where queries have one length, as behind a norm.
    """
    variance = np.asarray(variance, dtype=float)
    if keys == 1:
        return Sharpness(np.zeros_like(variance), np.ones_like(variance))
    levels, entropy, largest = _table(keys)
    factors = np.ones(1)
    if head_width is not None:
        factors = 2.0 * gammaincinv(head_width / 2.0, (np.arange(NODES) + 0.5) / NODES) / head_width
        factors /= factors.mean()
    places = np.log(np.clip(variance[..., None] * factors, LEAST, MOST))
    small = variance < LEAST
    found = [np.interp(places, levels, table).mean(-1) for table in (entropy, largest)]
    flat = math.log(keys) - (1.0 - 1.0 / keys) * variance / 2.0
    return Sharpness(np.where(small, flat, found[0]), found[1])


@lru_cache(maxsize=256)
def _table(keys: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = max(ROWS, (1 << 14) // keys)
    scores = torch.randn(rows, keys, generator=torch.Generator().manual_seed(keys), dtype=torch.float64)
    levels = torch.linspace(math.log(LEAST), math.log(MOST), LEVELS, dtype=torch.float64)
    weights = [(scores * level).softmax(-1) for level in (levels / 2).exp()]
    entropy = torch.stack([-torch.special.xlogy(item, item).sum(-1).mean() for item in weights])
    largest = torch.stack([item.amax(-1).mean() for item in weights])
    return levels.numpy(), entropy.numpy(), largest.numpy()


# -- Attention scores of a blueprint: their variance, the entropy of the weights, and the largest weight


POSITIONS = 12
"""Queries of a causal mask at which entropy is evaluated; between them it is interpolated in log position."""


def score_rows(tape: Tape, depth: int | None = None) -> list[SiteRow]:
    """One row per attention, named `...attention.scores`; of a tape whose grid axis is the layer, one per layer."""
    rows = []
    for node in tape.graph.nodes:
        if not isinstance(node.op, Attention):
            continue
        columns, evidence = _score_columns(tape, node, node.op), tape.signal(node).evidence
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


def _score_columns(tape: Tape, node: Node, op: Attention) -> dict[str, np.ndarray]:
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


STACK = "blocks"


def predict(blueprint: Blueprint, top: Gradient | None = None, scores: bool = False) -> Profile:
    """The profile of a blueprint: one row per named site, one per parameter.

    `top` replaces the blueprint's own gradient at the output. Settings that are grids give rows of tensors.
    `scores`: also predict attention scores (`blocks.0.attention.scores`), where no setting is a grid.
    """
    meta = {"source": "predict", "model": blueprint.name, "settings": _settings(blueprint)}
    unrolled = unroll(blueprint, top) if isinstance(blueprint, RepeatedBlueprint) else None
    if not isinstance(blueprint, RepeatedBlueprint) or unrolled is None:
        tape = run(blueprint, top)[0]
        found = profile_of(tape, meta)
        return _finite(_with_scores(found, score_rows(tape)) if scores else found)
    first, last = profile_of(unrolled.start, {}), profile_of(unrolled.finish, {})
    sites, parameters = _layers(unrolled.blocks, blueprint.depth)
    found = Profile(first.sites + sites + last.sites, first.parameters + parameters + last.parameters, meta)
    return _finite(_with_scores(found, score_rows(unrolled.blocks, blueprint.depth)) if scores else found)


def _with_scores(profile: Profile, scores: list[SiteRow]) -> Profile:
    return dataclasses.replace(profile, sites=placed(profile.sites, scores))


def _finite(profile: Profile) -> Profile:
    """The profile, unless its numbers left the range of floating point: such a stack has no prediction."""
    for row in reversed(profile.sites):
        numbers = [torch.as_tensor(item) for item in (row.variance, row.grad_variance) if item is not None]
        numbers = numbers[:1] if row.extras else numbers
        if not all(bool(torch.isfinite(item).any()) for item in numbers):
            raise overflow(repr(row.name), [torch.as_tensor(item.variance).max() for item in profile.sites])
    return profile


def profile_of(tape: Tape, meta: dict[str, Any]) -> Profile:
    """Rows from the named nodes of a tape."""
    sites = [_site(tape, site) for site in tape.graph.sites]
    return Profile(sites, _merged([row for node in tape.graph.nodes for row in _parameters(tape, node)]), meta)


def _site(tape: Tape, site: NamedNode) -> SiteRow:
    signal, gradient = tape.signal(site.node), tape.states.gradients.get(site.node)
    mean, variance, correlation = signal.summary()
    evidence = signal.evidence
    row = SiteRow(site.name, site.depth, _number(mean), _number(variance), _number(correlation))
    if gradient is not None:
        energy, grad_correlation = gradient.summary()
        row.grad_variance, row.grad_token_correlation = _number(energy), _number(grad_correlation)
        evidence = evidence.join(gradient.evidence)
    row.status, row.reason = str(evidence.status), evidence.reason
    row.stated_errors = stated_by_theory(variance=signal.evidence, grad_variance=evidence)
    return row


def _parameters(tape: Tape, node: Node) -> list[ParameterRow]:
    found, gradient = tape.states.parameters.get(node, []), tape.states.gradients.get(node)
    evidence = tape.signal(node).evidence
    if gradient is not None:
        evidence = evidence.join(gradient.evidence)
    status = str(evidence.status)
    return [
        ParameterRow(
            f"{node.parameters}.{state.name}",
            state.shape,
            state.role,
            _number(torch.as_tensor(state.variance, dtype=torch.float64).sqrt()),
            _number(state.grad_second_moment.clamp_min(0.0)),
            status=status,
            reason=evidence.reason,
            stated_errors=stated_by_theory(grad_second_moment=evidence),
        )
        for state in found
    ]


def _merged(rows: list[ParameterRow]) -> list[ParameterRow]:
    """A parameter used in several places has one row: its gradients add, taken as independent."""
    found: dict[str, ParameterRow] = {}
    for row in rows:
        if row.name in found:
            row.grad_second_moment = row.grad_second_moment + found[row.name].grad_second_moment
            row.role = found[row.name].role
        found[row.name] = row
    return list(found.values())


def _layers(tape: Tape, depth: int) -> tuple[list[SiteRow], list[ParameterRow]]:
    """Rows of a tape whose grid axis is the layer, written out layer by layer."""
    sites = [_columns(_site(tape, site), depth) for site in tape.graph.sites]
    parameters = [_columns(row, depth) for node in tape.graph.nodes for row in _parameters(tape, node)]
    return (
        [_layer_row(columns, layer) for layer in range(depth) for columns in sites],
        [_layer_row(columns, layer) for layer in range(depth) for columns in parameters],
    )


def _columns(row: SiteRow | ParameterRow, depth: int) -> tuple[Any, dict[str, list[float]]]:
    values = {
        name: torch.as_tensor(getattr(row, name), dtype=torch.float64).expand(depth).tolist()
        for name in type(row).COLUMNS
    }
    return row, values


def _layer_row(columns: tuple[Any, dict[str, list[float]]], layer: int) -> Any:
    row, values = columns
    numbers: dict[str, Any] = {name: column[layer] for name, column in values.items()}
    name = STACK + f".{layer}" + row.name.removeprefix(STACK)
    if isinstance(row, SiteRow):
        return dataclasses.replace(row, name=name, depth=layer, **numbers)
    return dataclasses.replace(row, name=name, **numbers)


def _number(value: Tensor) -> Any:
    """A float where there is one setting, the tensor where there is a grid."""
    return float(value) if value.numel() == 1 else value


def _settings(blueprint: Blueprint) -> dict[str, Any]:
    settings = {field.name: getattr(blueprint, field.name) for field in dataclasses.fields(blueprint)}
    return {key: _plain(value) for key, value in settings.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return value if isinstance(value, (int, float, str, bool, type(None), list, tuple)) else str(value)
