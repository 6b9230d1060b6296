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
from sigprop.results.stated_errors import tell
from sigprop.theory import EXACT, Gradient
from sigprop.theory.kernels import Exchangeable, Kernel
from sigprop.theory.ops.attention import Attention
from sigprop.theory.ops.layer_norm import RMSNorm
from sigprop.theory.states import FEW

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


def score_rows(tape: Tape) -> list[SiteRow]:
    """One row per attention, named `...attention.scores`."""
    rows = []
    for node in tape.graph.nodes:
        if isinstance(node.op, Attention):
            made = {key: _number(torch.as_tensor(item)) for key, item in _score_columns(tape, node, node.op).items()}
            row = SiteRow(node.parameters, 0, 0.0, made.pop("variance"), extras=made)
            tell([(row, tape.signal(node).evidence, None)])
            rows.append(row)
    return rows


def placed(sites: list[SiteRow], scores: list[SiteRow]) -> list[SiteRow]:
    """Rows of scores before the row of the attention that computes them."""
    waiting = {row.name.removesuffix(".scores"): row for row in scores}
    return [item for row in sites for item in (waiting.pop(row.name, None), row) if item is not None]


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
    if unrolled is None:
        tapes: list[tuple[Tape, int | None]] = [(run(blueprint, top)[0], None)]
    else:
        tapes = [(unrolled.start, None), (unrolled.blocks, unrolled.depth), (unrolled.finish, None)]
    found = profile_of(tapes, meta)
    if scores:
        found.sites = placed(found.sites, [row for tape, depth in tapes for row in _layers(score_rows(tape), depth)])
    return _finite(found)


def _finite(profile: Profile) -> Profile:
    """The profile, unless its numbers left the range of floating point: such a stack has no prediction."""
    for row in reversed(profile.sites):
        numbers = [torch.as_tensor(item) for item in (row.variance, row.grad_variance) if item is not None]
        numbers = numbers[:1] if row.extras else numbers
        if not all(bool(torch.isfinite(item).any()) for item in numbers):
            raise overflow(repr(row.name), [torch.as_tensor(item.variance).max() for item in profile.sites])
    return profile


def profile_of(tapes: list[tuple[Tape, int | None]], meta: dict[str, Any]) -> Profile:
    """Rows from the named nodes of tapes, each with its depth if its grid axis is the layer."""
    sites, parameters = [], []
    for tape, depth in tapes:
        sites += _layers([_site(tape, site) for site in tape.graph.sites], depth)
        parameters += _layers([row for node in tape.graph.nodes for row in _parameters(tape, node)], depth)
    return Profile(sites, _merged(parameters), meta)


def _site(tape: Tape, site: NamedNode) -> SiteRow:
    signal, gradient = tape.signal(site.node), tape.states.gradients.get(site.node)
    mean, variance, correlation = signal.summary()
    variance = variance if signal.width > FEW else (variance - signal.of_the_average()).clamp_min(0.0)
    row = SiteRow(site.name, site.depth, *map(_number, (mean, variance, correlation)))
    evidence = signal.evidence
    if gradient is not None:
        row.grad_variance, row.grad_token_correlation = map(_number, gradient.summary())
        evidence = evidence.join(gradient.evidence)
    tell([(row, signal.evidence, "variance"), (row, evidence, "grad_variance")])
    return row


def _parameters(tape: Tape, node: Node) -> list[ParameterRow]:
    found, evidence = tape.states.parameters.get(node, ([], EXACT))
    rows = []
    for state in found:
        std = _number(torch.as_tensor(state.variance, dtype=torch.float64).sqrt())
        received = _number(state.grad_second_moment.clamp_min(0.0))
        row = ParameterRow(f"{node.parameters}.{state.name}", state.shape, state.role, std, received)
        tell([(row, evidence, "grad_second_moment")])
        rows.append(row)
    return rows


def _merged(rows: list[ParameterRow]) -> list[ParameterRow]:
    """A parameter used in several places has one row: its gradients add, taken as independent."""
    found: dict[str, ParameterRow] = {}
    for row in rows:
        if row.name in found:
            row.grad_second_moment = row.grad_second_moment + found[row.name].grad_second_moment
            row.role = found[row.name].role
        found[row.name] = row
    return list(found.values())


def _layers(rows: list[Any], depth: int | None) -> list[Any]:
    """Rows whose grid axis is the layer, written out layer by layer."""
    if depth is None:
        return rows
    columns = [_written_out({name: getattr(row, name) for name in row.COLUMNS}, depth) for row in rows]
    extras = [_written_out(getattr(row, "extras", {}), depth) for row in rows]
    found = []
    for layer in range(depth):
        for row, numbers, more in zip(rows, columns, extras, strict=True):
            name = f"{STACK}.{layer}" + row.name.removeprefix(STACK)
            made = dataclasses.replace(row, name=name, **{key: item[layer] for key, item in numbers.items()})
            if isinstance(made, SiteRow):
                made.depth, made.extras = layer, {key: item[layer] for key, item in more.items()}
            found.append(made)
    return found


def _written_out(columns: dict[str, Any], depth: int) -> dict[str, list[float]]:
    return {key: torch.as_tensor(item, dtype=torch.float64).expand(depth).tolist() for key, item in columns.items()}


def _number(value: Tensor) -> Any:
    """A float where there is one setting, the tensor where there is a grid."""
    return float(value) if value.numel() == 1 else value


def _settings(blueprint: Blueprint) -> dict[str, Any]:
    return {field.name: _plain(getattr(blueprint, field.name)) for field in dataclasses.fields(blueprint)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return value if isinstance(value, (int, float, str, bool, type(None), list, tuple)) else str(value)
