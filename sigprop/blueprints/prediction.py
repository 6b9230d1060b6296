"""From a blueprint to its `Profile`."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from sigprop.blueprints.base import Blueprint, Tape, overflow, run
from sigprop.blueprints.repeated import RepeatedBlueprint, unroll
from sigprop.blueprints.scores import placed, score_rows
from sigprop.graph.graph import NamedNode, Node
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.stated_errors import stated_by_theory
from sigprop.theory import Gradient

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
