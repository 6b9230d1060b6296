"""The role of every parameter, from the ops that its trace binds it to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from sigprop.recipes.anatomy import Junction, Parameter, Part
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.normalization import LayerNorm
from sigprop.trace.attending import attending
from sigprop.trace.layout import Axis
from sigprop.trace.record import Field, Source, Weight
from sigprop.trace.roles import CONTRACTIONS
from sigprop.trace.rules.convolution import PixelWindows, Windows
from sigprop.trace.structural import Gain, ParameterSource
from sigprop.trace.tracing import Trace

if TYPE_CHECKING:
    from sigprop.trace.residual import Graph


def find_parameters(trace: Trace, graph: Graph, junctions: list[Junction]) -> dict[str, Parameter]:
    """Every parameter of the traced model by its first name."""
    uses = _sampled_matrices(graph) | _uses(trace)
    attention = _attention(graph)
    inside = {name: number for number, junction in reversed(list(enumerate(junctions))) for name in junction.inside}
    first = {name for junction in junctions for name in junction.weights[:1]}
    last = {name for junction in junctions for name in junction.weights}
    places = _places(graph)
    modules = dict(trace.capture.model.named_modules())
    found = {}
    for name, parameter in trace.capture.model.named_parameters():
        role, fan_in, fan_out = uses.get(name, ("unused", 0, 0))
        junction = inside.get(name)
        parts: tuple[Part, ...] = ()
        if role == "matrix":
            parts = _parts(attention.get(name, []), fan_out)
            role = parts[0].role if len(parts) == 1 else "query_key" if parts else "hidden"
            role = "output" if name in last else role
            if junction is None:
                role = places.get(name, "hidden")
        elif role == "embedding" and junction is not None:
            role = "unused"
        elif name in first:
            role = "output"
        found[name] = Parameter(
            name,
            tuple(parameter.shape),
            role,
            fan_in,
            fan_out,
            _output_axis(modules, name, tuple(parameter.shape), fan_out),
            parts if len(parts) > 1 else (),
            junction,
            tied=role == "embedding" and name in places,
            head_width=next((width for _, _, width in attention.get(name, [])), 0),
            constant=_constant(trace, name),
        )
    return found


def _constant(trace: Trace, name: str) -> float | None:
    """The one value of a parameter's entries, as the model draws it."""
    weight = trace.weights.get(name)
    return weight.distribution.mean if weight is not None and weight.distribution.variance == 0.0 else None


def _uses(trace: Trace) -> dict[str, tuple[str, int, int]]:
    """By name: kind of use and fans; an embedding that is also a readout stays an embedding."""
    found: dict[str, tuple[str, int, int]] = {}
    for node, bound in trace.capture.bindings.items():
        op = node.op
        for key, (weight, _) in bound.items():
            for name, _ in weight.roots():
                use = _use(op, key, weight)
                if use is not None and found.get(name, ("",))[0] != "embedding":
                    found[name] = use
    return found


def _use(op: object, key: str, weight: Weight) -> tuple[str, int, int] | None:
    if isinstance(op, ParameterSource):
        return ("embedding", 1, weight.shape[-1]) if len(weight.shape) > 1 else ("bias", 0, 0)
    if isinstance(op, (Gain, LayerNorm)):
        return ("gain" if key == "weight" else "bias", 0, 0)
    if key != "weight":
        return ("bias", 0, 0)
    if isinstance(op, Linear):
        return ("matrix", op.fan_in, op.fan_out)
    if isinstance(op, Windows):
        return ("matrix", op.channels_in * op.index.shape[0], op.channels_out * op.index.shape[0])
    if isinstance(op, PixelWindows):
        return ("matrix", op.fan_in, op.channels_out)
    return None


def _sampled_matrices(graph: Graph) -> dict[str, tuple[str, int, int]]:
    """Matrices that only sampled calls use (experts): fans by shape, as for a stack of `[outputs, inputs]`."""
    found = {}
    for item in graph.index:
        if item.call is None or item.call.name not in CONTRACTIONS:
            continue
        for weight in item.inputs:
            if isinstance(weight, Weight) and len(weight.shape) > 1:
                for name, _ in weight.roots():
                    found[name] = ("matrix", weight.shape[-1], weight.shape[-2])
    return found


def _attention(graph: Graph) -> dict[str, list[tuple[str, Source, int]]]:
    """By matrix: the pieces of its output that attention uses, each with its role and head width."""
    found: dict[str, list[tuple[str, Source, int]]] = {}
    for item in graph.index:
        spot = attending(item)
        if spot is None:
            continue
        width = spot.value.shape[-1]
        for role, fields in (("query_key", spot.scores), ("value", (spot.value,))):
            for source in dict.fromkeys(source for field in fields for source in field.sources):
                for weight in source.field.inputs:
                    if isinstance(weight, Weight) and len(weight.shape) > 1:
                        for name, _ in weight.roots():
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


def _places(graph: Graph) -> dict[str, str]:
    """Matrices outside all branches: `stem` before the first junction, `readout` after the last sum."""
    if not graph.sums:
        return {}
    first = min(graph.index.get(found.skip, 0) for found in graph.sums.values())
    end = max(graph.index[total] for total in graph.sums)
    found: dict[str, str] = {}
    for item, index in graph.index.items():
        for weight in item.inputs:
            if isinstance(weight, Weight) and isinstance(item, Field) and (index <= first or index > end):
                for name, _ in weight.roots():
                    if index > end or (item.call is not None and item.call.name != "embedding"):
                        found[name] = "stem" if index <= first else "readout"
    return found


def _output_axis(modules: dict[str, nn.Module], name: str, shape: tuple[int, ...], fan_out: int) -> int:
    """The axis of a matrix that its outputs lie along."""
    owner = modules.get(name.rpartition(".")[0])
    if isinstance(owner, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) or len(shape) < 2:
        return 0
    if type(owner).__name__ == "Conv1D" or shape[0] != fan_out:
        return len(shape) - 1
    return 0
