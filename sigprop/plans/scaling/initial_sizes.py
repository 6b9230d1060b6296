"""How an initialization depends on width and depth, and what a rule multiplies it by.

The model's own: the ratio of root mean squares in the two builds is set to the exact ratio of the nearest usual scheme
(fixed, fan-in, Glorot, ...) within its standard error, so that the plan multiplies by an exact number.

A recipe's: it is asked for both sizes, and a row is multiplied by

    size of the recipe at the base / its size at the model * what the rule asks

Without a base the recipe is asked for the structure of a model of the reference width; recipes that solve for predicted
states are not, their matrices go like `fan_in^{-1/2}` by construction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import nn

from sigprop.errors import InputError, UnknownNameError
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.rows import Recipe, scale_rows
from sigprop.plans.scaling.dimensions import Dimensions, pattern
from sigprop.results import Init
from sigprop.results.parameters import TABLES, WIDTH_CLASSES
from sigprop.sites import plain_name, unwrap
from sigprop.structure import Parameter, Structure

SCHEMES = ("fixed", "fan_in", "glorot", "fan_out", "width", "1/fan_in", "1/width")


@dataclass(frozen=True)
class Own:
    """Size of the base parameter, and the ratio of the model's own initialization to it, by width and by depth."""

    size: float
    constant: bool
    width: float
    depth: float
    has_values: bool = True

    def init(self, weight: float, replaces_depth: bool) -> Init:
        """The initialization of root mean square `weight * size`: the present one rescaled, or a new one on meta."""
        if not self.has_values:
            if self.constant:
                return Init("constant", value=self.size * weight)
            return Init("normal", std=abs(self.size) * weight)
        factor = weight / self.width / (self.depth if replaces_depth else 1.0)
        return Init("keep", value=1.0 if math.isclose(factor, 1.0, rel_tol=1e-12) else factor)


def own_inits(model: nn.Module, base: nn.Module, dims: list[Dimensions], scheme: str | None = None) -> dict[str, Own]:
    """One `Own` per parameter; `scheme` names the model's own rule where the base has no values."""
    if scheme is not None and scheme not in SCHEMES:
        raise UnknownNameError("own_init", scheme, SCHEMES)
    candidates = _all_candidates(dims)
    if scheme is not None:
        return {item.name: Own(1.0, False, candidates[item.name][scheme, 0.0][0], 1.0) for item in dims}
    sizes, base_sizes = _sizes(model), _sizes(base)
    if None in base_sizes.values():
        raise InputError("the base is on the meta device and has no values: build it for real, or pass own_init=...")
    feasible = {
        item.name: _feasible(item, candidates[item.name], sizes[item.name], base_sizes[item.base_name]) for item in dims
    }
    votes: Counter[tuple] = Counter()
    for item in dims:
        if len(feasible[item.name]) == 1:
            votes.update({(len(item.shape) > 1, key): math.prod(item.shape) for key in feasible[item.name][0]})
    found = {}
    for item in dims:
        size, base_size = sizes[item.name], base_sizes[item.base_name]
        assert base_size is not None
        if size is None:
            found[item.name] = Own(*base_size, 1.0, 1.0, has_values=False)
        elif feasible[item.name]:
            best = max(feasible[item.name], key=lambda keys: _support(keys, votes, len(item.shape) > 1))
            found[item.name] = Own(*base_size, *candidates[item.name][best[0]])
        else:
            ratio = abs(size[0] / base_size[0]) if size[0] and base_size[0] else 1.0
            found[item.name] = Own(*base_size, ratio, 1.0)
    return found


def _support(keys: list[tuple[str, float]], votes: Counter, matrix: bool) -> tuple[int, int]:
    """Entries of parameters of the same kind (matrices, vectors) that show one of the schemes; then of the other."""
    return max((votes[matrix, key], votes[not matrix, key]) for key in keys)


def _sizes(model: nn.Module) -> dict[str, tuple[float, bool] | None]:
    """(root mean square over layers of one shape, False), or (value, True) for a constant; None on the meta device."""
    groups: dict[tuple, list[torch.Tensor]] = {}
    layers: dict[str, tuple] = {}
    for owner, module in unwrap(model).named_modules():
        owned = list(module.named_parameters(recurse=False))
        shapes = tuple((leaf, parameter.shape) for leaf, parameter in owned)
        for leaf, parameter in owned:
            name = plain_name(f"{owner}.{leaf}" if owner else leaf)
            layers[name] = (pattern(name), shapes)
            groups.setdefault(layers[name], []).append(parameter.detach())
    real = {layer: group for layer, group in groups.items() if not any(tensor.is_meta for tensor in group)}
    pooled = dict(zip(real, _pooled(list(real.values())), strict=True))
    return {name: pooled.get(layer) for name, layer in layers.items()}


def _pooled(groups: list[list[torch.Tensor]]) -> list[tuple[float, bool]]:
    """The sizes of all groups, read from the device at once."""
    if not groups:
        return []
    rows = [torch.stack([*torch.aminmax(tensor), _norm(tensor)]) for group in groups for tensor in group]
    values = iter(torch.stack(rows).tolist())
    found = []
    for group in groups:
        least, largest, norms = zip(*(next(values) for _ in group), strict=True)
        constant = min(least) == max(largest)
        size = math.sqrt(sum(norm**2 for norm in norms) / sum(tensor.numel() for tensor in group))
        found.append((least[0], True) if constant else (size, False))
    return found


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _all_candidates(dims: list[Dimensions]) -> dict[str, dict[tuple[str, float], tuple[float, float]]]:
    """Per parameter: (scheme, power of depth) -> (ratio by width, ratio by depth)."""
    ratios = Counter(ratio for item in dims for ratio in (item.fan_in, item.fan_out) if ratio != 1.0)
    width = ratios.most_common(1)[0][0] if ratios else 1.0
    fans = {item.name.rpartition(".")[0]: item.fan_in for item in dims if len(item.shape) > 1}
    found = {}
    for item in dims:
        fan_in = fans.get(item.name.rpartition(".")[0], item.fan_in)
        grown = (item.rows[1] + item.columns[1]) / (item.rows[0] + item.columns[0]) if len(item.shape) > 1 else 1.0
        by_width = (1.0, fan_in**-0.5, grown**0.5, item.fan_out**-0.5, width**-0.5, 1.0 / fan_in, 1.0 / width)
        powers = (0.0,) if item.depth == 1.0 else (0.0, 0.5, 1.0)
        found[item.name] = {
            (scheme, power): (ratio, item.depth**-power)
            for scheme, ratio in zip(SCHEMES, by_width, strict=True)
            for power in powers
        }
    return found


def _feasible(item: Dimensions, candidates: dict, size, base_size) -> list[list[tuple[str, float]]]:
    """The candidates within four standard errors of the measured ratio, nearest first, equal ratios together."""
    if size is None or size[1] or base_size[1]:
        return []
    measured = math.log(size[0] / base_size[0])
    error = math.sqrt(0.5 / math.prod(item.shape) + 0.5 / math.prod(item.base_shape))
    distances: dict[float, list[tuple[str, float]]] = {}
    for key, (by_width, by_depth) in candidates.items():
        distance = abs(measured - math.log(by_width * by_depth))
        if distance < 4 * error + 1e-3:
            distances.setdefault(round(distance, 12), []).append(key)
    return [distances[distance] for distance in sorted(distances)]


SAME = 1e-9


def scaled_from_base(
    made: Plan, scheme: Recipe, base: Structure, weights: Mapping[str, float], options: dict[str, Any]
) -> Plan:
    """The plan with the recipe's sizes of the base, times the rule's. Layers that share their names share the ratio."""
    if scheme.data:
        return made
    sizes = (_by_pattern(made), _by_pattern(scheme(base, **options)))
    ratios = {key: sizes[1].get(key, size) / size for key, size in sizes[0].items() if size > 0.0}
    return _times(made, {row.name: ratios.get(pattern(row.name), 1.0) * weights.get(row.name, 1.0) for row in made})


def scaled_from_reference(
    made: Plan, scheme: Recipe, structure: Structure, dims: Mapping[str, Dimensions], readout: float, options: dict
) -> Plan:
    """The plan with the recipe's sizes at the reference, times the rule's; `readout` is the rule's exponent of it."""
    width = next(iter(dims.values())).rows[1]
    grown = (structure.width or width) / width
    there = made if scheme.solves or scheme.data else scheme(_narrowed(structure, grown, width), **options)
    own = {row.name: row.init.size for row in there}
    factors = {}
    for row in made.parameters:
        item = structure.parameters.get(row.name)
        if item is None or (row.init.kind == "keep" and row.role != "readout"):
            continue
        ratio = own[row.name] / row.init.size if row.init.size > 0.0 else 1.0
        if item.role == "readout":
            power = readout - (0.5 if there is made else 0.0)
            factors[row.name] = min(1.0, ratio * dims[row.name].fan_in ** -power)
        elif there is not made and (item.is_matrix or item.role in TABLES):
            hidden = WIDTH_CLASSES[item.role] in ("hidden", "readout")
            factors[row.name] = ratio * (grown**-0.5 if hidden else 1.0)
    return _times(made, factors)


def _narrowed(structure: Structure, grown: float, width: int) -> Structure:
    """What the structure says of a model of the reference width."""

    def size(number: int) -> int:
        return max(1, round(number / grown))

    def narrow(item: Parameter) -> Parameter:
        kind = WIDTH_CLASSES[item.role]
        inward = size(item.fan_in) if kind in ("hidden", "readout") else item.fan_in
        outward = size(item.fan_out) if kind in ("hidden", "embedding") else item.fan_out
        shape = (outward, inward) if item.is_matrix and len(item.shape) == 2 else item.shape
        return replace(item, fan_in=inward, fan_out=outward, shape=shape)

    return replace(structure, parameters={item.name: narrow(item) for item in structure}, width=width)


def _by_pattern(plan: Plan) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for row in plan.parameters:
        if row.init.kind not in ("keep", "constant"):
            groups.setdefault(pattern(row.name), []).append(row.init.size)
    return {key: math.sqrt(fmean(size**2 for size in sizes)) for key, sizes in groups.items()}


def _times(plan: Plan, factors: Mapping[str, float]) -> Plan:
    given = ((row, factors.get(row.name, 1.0)) for row in plan.parameters)
    changed = {
        row.name: f for row, f in given if row.init.kind != "constant" and not math.isclose(f, 1.0, rel_tol=SAME)
    }
    return scale_rows(plan, changed, "by the width rule x{:.4g}")
