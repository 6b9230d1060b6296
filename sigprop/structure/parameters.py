"""The role of every parameter: how the trace uses it, told apart by the branch and the attention it serves."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import nn

from sigprop.capture.layout import Axis
from sigprop.capture.record import Source, Weight
from sigprop.capture.roles import find_roles
from sigprop.capture.tracing import TracedModel
from sigprop.results.parameters import MATRICES
from sigprop.structure.attention import attention_at
from sigprop.structure.model import Junction, Parameter, Part

if TYPE_CHECKING:
    from sigprop.structure.residual import Tensors


def find_parameters(
    traced: TracedModel,
    graph: Tensors,
    junctions: list[Junction],
    blocks: tuple[tuple[str, ...], ...] = (),
    frozen: Collection[str] = (),
) -> dict[str, Parameter]:
    """Every parameter of the traced model by its first name."""
    uses = find_roles(traced, list(graph.index))
    attention = _attention(graph)
    inside = {name: number for number, junction in reversed(list(enumerate(junctions))) for name in junction.inside}
    first = {name for junction in junctions for name in junction.weights[:1]}
    last = {name for junction in junctions for name in junction.weights}
    early = _early(graph)
    modules = dict(traced.capture.model.named_modules())
    found = {}
    for name, use in uses.items():
        junction = inside.get(name)
        parts = _parts(attention.get(name, []), use.fan_out) if use.role == "hidden" else ()
        role = use.role
        if role in ("hidden", "input") and junction is not None:
            role = parts[0].role if len(parts) == 1 else "query_key" if parts else "hidden"
            role = "output" if name in last else role
        elif role == "hidden" and name in early:
            role = "input"
        elif role == "embedding" and junction is not None:
            role = "positional"
        elif name in first and role in ("norm gain", "gain"):
            role = "output"
        found[name] = Parameter(
            name,
            tuple(use.shape),
            role,
            use.fan_in,
            use.fan_out,
            _output_axis(modules, name, tuple(use.shape), use.fan_out),
            parts if len(parts) > 1 else (),
            junction,
            tied=role == "embedding" and any(other in MATRICES for other in use.uses),
            head_width=next((width for _, _, width in attention.get(name, [])), 0),
            constant=_constant(traced, name),
            expert=use.expert,
            frozen=name in frozen,
            block=next((block for group in blocks for block in group if name.startswith(block + ".")), ""),
        )
    return found


def _constant(traced: TracedModel, name: str) -> float | None:
    """The one value of a parameter's entries, as the model initializes it."""
    weight = traced.weights.get(name)
    return weight.distribution.mean if weight is not None and weight.distribution.variance == 0.0 else None


def _attention(graph: Tensors) -> dict[str, list[tuple[str, Source, int]]]:
    """By matrix: the pieces of its output that attention uses, each with its role and head width."""
    found: dict[str, list[tuple[str, Source, int]]] = {}
    for item in graph.index:
        spot = attention_at(item)
        if spot is None:
            continue
        width = spot.value.shape[-1]
        for role, fields in (("query_key", spot.scores), ("value", (spot.value,))):
            for source in dict.fromkeys(source for field in fields for source in field.sources):
                for weight in source.field.inputs:
                    if isinstance(weight, Weight) and len(weight.shape) > 1:
                        for name, _ in weight.roots:
                            found.setdefault(name, []).append((role, source, width))
    return found


def _parts(pieces: list[tuple[str, Source, int]], fan_out: int) -> tuple[Part, ...]:
    """Roles along the output axis, merged; one part when the whole output has one role."""
    roles = ["hidden"] * fan_out
    for role, source, _ in sorted(pieces, key=lambda piece: len(piece[1].ranges), reverse=True):
        for place in _entries(source):
            if place < fan_out:
                roles[place] = role
    parts: list[Part] = []
    for role in roles if pieces else []:
        if parts and parts[-1].role == role:
            parts[-1] = Part(role, parts[-1].size + 1)
        else:
            parts.append(Part(role, 1))
    return tuple(parts)


def _entries(source: Source) -> list[int]:
    """Output channels that a source's outermost slice covers."""
    axes = [axis for axis in source.field.layout.dims[-1] if not axis.is_position]
    total = math.prod(axis.size for axis in axes)
    if not source.ranges or not axes:
        return list(range(total))
    wanted, start, stop = source.ranges[0]
    spot = _inside(tuple(axes), wanted)
    if spot is None:
        return list(range(total))
    inner = spot
    return [place for place in range(total) if start <= place // inner % wanted.size < stop]


def _inside(axes: tuple[Axis, ...], wanted: Axis) -> int | None:
    """How many entries lie inside one step of an axis, which may be a factor of one of the given axes."""
    inner = 1
    for axis in reversed(axes):
        if axis is wanted:
            return inner
        for factors in axis.splits.values():
            deeper = _inside(factors, wanted)
            if deeper is not None:
                return inner * deeper
        inner *= axis.size
    return None


def _early(graph: Tensors) -> set[str]:
    """Weights that are used before the first residual branch begins."""
    if not graph.sums:
        return set()
    first = min(graph.index.get(found.skip, 0) for found in graph.sums.values())
    early = [item for item, index in graph.index.items() if index <= first]
    weights = [weight for item in early for weight in item.inputs if isinstance(weight, Weight)]
    return {name for weight in weights for name, _ in weight.roots}


def _output_axis(modules: dict[str, nn.Module], name: str, shape: tuple[int, ...], fan_out: int) -> int:
    """The axis of a matrix that its outputs lie along."""
    owner = modules.get(name.rpartition(".")[0])
    if isinstance(owner, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) or len(shape) < 2:
        return 0
    if type(owner).__name__ == "Conv1D" or shape[0] != fan_out:
        return len(shape) - 1
    return 0
