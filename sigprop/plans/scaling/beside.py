r"""A model beside its base, or beside a reference of fixed size: what the rules compare, and the sizes they ask for.

The reference is a layer of `REFERENCE_WIDTH` = 128 inputs in a stack of `REFERENCE_LAYERS` = 4 layers
(docs/do/plan.md#what-lr-means). With fan-in `f`, stream width `d` and `m = f / 128`, a rule with readout exponent `A`
and alignment `alpha` asks of Adam

    matrices, readout, router   lr  m^{-alpha}               (muP: 128 / fan-in)
    input                       lr  min(1, m^{-alpha})
    embeddings, gains, biases   lr  1
    positions, tied tables      lr  std sqrt(128)            (not with SGD)
    all but the readout         epsilon  (d/128)^{-A}
    readout                     std  min(1, m^{-(A - 1/2)}) on top of the recipe's, which is taken to go like f^{-1/2}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from sigprop.errors import require
from sigprop.plans.matrix_optimizers import matrix_shape
from sigprop.plans.multipliers import Sizes
from sigprop.plans.scaling.attention import AttentionScales, attention_scales, reference_attention_scales
from sigprop.plans.scaling.depth import DepthFactors, depths_beside_base, depths_beside_reference
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.plans.scaling.width_rules import WidthRule
from sigprop.results.parameters import WIDTH_CLASSES
from sigprop.sites import modules_of
from sigprop.structure import Parameter, Structure

REFERENCE_WIDTH, REFERENCE_LAYERS = 128, 4


@dataclass(frozen=True)
class Rules:
    """A width rule (none: sizes stay), a depth rule, and what a user says beyond their names.

    `attention`: `scale` (1/d, the default of muP) or `keep`; `branches`: the modules that end a residual branch.
    """

    width: WidthRule | None = None
    depth: str = "none"
    attention: str | None = None
    branches: Sequence[str] | None = None
    reference_width: int = REFERENCE_WIDTH

    @property
    def scales_attention(self) -> bool:
        default = "scale" if self.width is not None and self.width.scales_attention else "keep"
        chosen = self.attention or default
        require(chosen in ("scale", "keep"), "attention", chosen, "scale or keep")
        return chosen == "scale"


@dataclass(frozen=True)
class Beside:
    """A model, its base (none: the reference), its parameters beside theirs, and what attention and depth ask."""

    model: nn.Module
    base: nn.Module | None
    dims: dict[str, Dimensions]
    pair: ModelAndBase
    rules: Rules
    scores: AttentionScales = field(default_factory=AttentionScales)
    depths: Mapping[str, DepthFactors] = field(default_factory=dict)

    @property
    def structure(self) -> Structure | None:
        return self.pair.model

    def deep(self, name: str) -> DepthFactors:
        """What the depth rule asks of a parameter; nothing outside branches."""
        return self.depths.get(name, DepthFactors())

    def sizes(self) -> dict[str, Sizes]:
        """By parameter: the sizes of weight, update and gradient that the rules ask for."""
        return {name: self._sizes(item) for name, item in self.dims.items()}

    def _sizes(self, item: Dimensions) -> Sizes:
        deep, rule = self.deep(item.name), self.rules.width
        if rule is None:
            return Sizes(1.0, deep.update, deep.gradient).gauged(deep.weight)
        sizes = rule.factors(item)
        sizes = Sizes(sizes.weight, sizes.update * deep.update, sizes.gradient * deep.gradient)
        gauge = self.scores.gauges.get(item.name, 1.0) / self.pair.table_scale(item.name)
        sizes = sizes.gauged(gauge * deep.weight)
        if self.base is not None:
            return sizes
        structure = self.pair.required
        stream = (structure.width or self.rules.reference_width) / self.rules.reference_width
        return reference_sizes(rule, item, structure.parameters[item.name].role, stream, sizes)

    def output_scales(self) -> dict[str, float]:
        """By module: what the exact moves multiply its output with."""
        found = {alias.rpartition(".")[0]: 1.0 for item in self.dims.values() for alias in item.aliases}
        found |= {name.rpartition(".")[0]: deep.branch for name, deep in self.depths.items() if deep.ends}
        return found | self.scores.outputs | self.pair.tables_scaled_outside()


def beside_of(
    model: nn.Module, base: nn.Module | None, dims: Sequence[Dimensions], pair: ModelAndBase, rules: Rules
) -> Beside:
    """The comparison, with what attention and depth ask."""
    scores = AttentionScales()
    if rules.scales_attention and base is not None:
        scores = attention_scales(model, pair)
    elif rules.scales_attention and pair.model is not None:
        scores = reference_attention_scales(model, pair.model, rules.reference_width)
    modules = modules_of(model)
    for name, (number, after) in pair.readout_scales().items() if rules.width is not None else ():
        item = next(item for item in dims if item.name == name)
        if item.role == "readout":  # of a tied one, `tables.tied_factor` takes the number
            scores.gauges[name] = 1.0 / number
        owners = {alias.rpartition(".")[0] for alias in item.aliases if after}
        scores.outputs |= {owner: 1.0 / number for owner in owners if not isinstance(modules[owner], nn.Embedding)}
    if base is not None:
        depths = depths_beside_base(dims, rules.depth, rules.branches, pair)
    else:
        depths = depths_beside_reference(pair.required, dims, rules.depth)
    return Beside(model, base, {item.name: item for item in dims}, pair, rules, scores, depths)


def reference_dimensions(structure: Structure, width: int = REFERENCE_WIDTH) -> list[Dimensions]:
    """Every parameter beside the reference; `depth` is 1 outside residual branches."""
    owners = {} if structure.model is None else modules_of(structure.model)
    return [_dimensions(structure, item, width, owners.get(item.name.rpartition(".")[0])) for item in structure]


def _dimensions(structure: Structure, item: Parameter, width: int, owner: nn.Module | None) -> Dimensions:
    kind = WIDTH_CLASSES[item.role] if len(item.shape) > 1 else "vector"
    stream = (structure.width or item.fan_out) / width
    fan_in = item.fan_in / width if len(item.shape) > 1 and item.role not in ("embedding", "positional") else 1.0
    junction = structure.junction_of(item)
    depth = structure.layers(junction.stream) / REFERENCE_LAYERS if junction is not None else 1.0
    rows, columns = matrix_shape(item.shape, owner)
    grows = 1.0 if kind == "readout" or not item.shape or _beside_readout(structure, item) else stream
    fan_out = item.fan_out / width if kind == "hidden" else grows
    return Dimensions(
        item.name,
        item.shape,
        item.shape,
        kind,
        fan_in,
        fan_out,
        depth,
        (rows, width),
        (columns, width),
        (item.name,),
        item.name,
    )


def _beside_readout(structure: Structure, item: Parameter) -> bool:
    owner = item.name.rpartition(".")[0]
    return any(other.role == "readout" and other.name.rpartition(".")[0] == owner for other in structure)


def reference_sizes(rule: WidthRule, item: Dimensions, role: str, stream: float, sizes: Sizes) -> Sizes:
    """What is left to do to the sizes beside the reference: inputs by their fan-in, gradients by the stream's width."""
    update = min(1.0, item.fan_in**-rule.alpha_hidden) if role == "input" else 1.0
    asked = 1.0 if item.fan_out == 1.0 or item.role == "readout" else stream**-rule.readout
    return Sizes(sizes.weight, sizes.update * update, sizes.gradient * asked / rule.factors(item).gradient)
