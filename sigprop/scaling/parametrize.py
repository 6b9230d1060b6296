"""`parametrize`: a plan that carries a base model's initialization and learning rates to another width and depth.

The steps, each in its own file: build the base, compare dimensions, find the model's own initialization,
take the width rule's sizes, gauge the attention scale and the branch scale into them, and turn sizes into the
optimizer's multipliers. At the base width and depth every number is exactly one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from sigprop.errors import require
from sigprop.recipes.optimizers import Sizes, multipliers
from sigprop.results import ParameterPlan, Plan, ScalePlan
from sigprop.results.application import plain_name, unwrap
from sigprop.results.optimizers import trained_by
from sigprop.scaling.attention import AttentionScales, attention_scales
from sigprop.scaling.builds import build_base
from sigprop.scaling.depth import (
    DEPTH_RULES,
    DepthFactors,
    branch_outputs,
    count_branches,
    depth_factors,
    stack_of,
    with_depth,
)
from sigprop.scaling.dimensions import Dimensions, compare
from sigprop.scaling.own_init import own_inits
from sigprop.scaling.width import WidthRule, width_rule
from sigprop.theory.exponents import Alignment, read_optimizer


def parametrize(
    model: nn.Module,
    rule: str = "mup",
    *,
    base: Any,
    optimizer: str = "adamw",
    depth: str = "none",
    alignment: Alignment | str | None = None,
    roles: Mapping[str, str] | None = None,
    attention: str | None = None,
    own_init: str | None = None,
    branches: Sequence[str] | None = None,
) -> Plan:
    """A plan for any model by comparing it with its base.

    - `base`: a smaller (or larger) build, a factory without arguments, a configuration, or a width.
    - `rule`: `mup`, `neural_tangent`, `sp`, or `meta:s`; `depth`: `none`, `sqrt`, `linear`, `dslm`.
    - `alignment` replaces the rule's assumption (`none`, or measured exponents).
    - `attention`: `scale` (1/d, the default of muP) or `keep` (the model's own scale, the default otherwise).
    - `roles` names unclear parameters, `branches` the modules that end a residual branch, and `own_init` the
      model's own scheme where the base has no values.
    """
    width = width_rule(rule, alignment)
    base = build_base(model, base)
    dims = compare(model, base, roles)
    return plan_between(model, base, dims, width, optimizer, depth, attention, own_init, branches)


def plan_between(
    model: nn.Module,
    base: nn.Module,
    dims: list[Dimensions],
    width: WidthRule,
    optimizer: str = "adamw",
    depth: str = "none",
    attention: str | None = None,
    own_init: str | None = None,
    branches: Sequence[str] | None = None,
) -> Plan:
    """The plan of two builds whose dimensions are already compared."""
    read_optimizer(optimizer)
    own = own_inits(model, base, dims, own_init)
    attention = attention or ("scale" if width.scales_attention else "keep")
    require(attention in ("scale", "keep"), "attention", attention, "scale or keep")
    scores = attention_scales(model, base, dims) if attention == "scale" else AttentionScales()
    factors = relative_sizes(dims, width, scores, depth, branches)
    rows = []
    for item in dims:
        sizes = factors[item.name]
        algorithm = trained_by(optimizer, item.role, item.shape)
        found = multipliers(sizes, optimizer, item.matrix if algorithm == "muon" else None, width.alpha_hidden)
        rows.append(
            ParameterPlan(
                item.name,
                item.shape,
                own[item.name].init(sizes.weight, replaces_depth=depth != "none"),
                lr=found.lr,
                weight_decay=found.weight_decay,
                eps=found.eps,
                why=_why(item, scores.gauges.get(item.name, 1.0)),
                role=item.role,
            )
        )
    scales = scores.scales + _tied_readouts(model, base, dims, width) + _embedding_scales(model, base)
    meta = {"recipe": width.name, "optimizer": optimizer, "depth": depth, "roles": _count_roles(dims)}
    return Plan(rows, scales=scales, meta=meta)


def relative_sizes(
    dims: list[Dimensions],
    width: WidthRule,
    scores: AttentionScales,
    depth: str = "none",
    branches: Sequence[str] | None = None,
) -> dict[str, Sizes]:
    """By parameter: the sizes of weight, update and gradient that the rules ask for, relative to the base."""
    depths = _depths(dims, depth, branches)
    found = {}
    for item in dims:
        deep, ends = depths.get(item.name, (DepthFactors(), False))
        found[item.name] = with_depth(width.factors(item), deep, ends).gauged(scores.gauges.get(item.name, 1.0))
    return found


def output_scales(
    dims: list[Dimensions], scores: AttentionScales, depth: str = "none", branches: Sequence[str] | None = None
) -> dict[str, float]:
    """By module: what the gauges and the branch scale multiply its output with, relative to the base."""
    found = {item.name.rpartition(".")[0]: 1.0 for item in dims}
    for name, (deep, ends) in _depths(dims, depth, branches).items():
        if ends:
            found[name.rpartition(".")[0]] = deep.branch
    return found | scores.outputs


def _depths(dims: list[Dimensions], rule: str, branches: Sequence[str] | None) -> dict[str, tuple[DepthFactors, bool]]:
    """For every parameter inside a repeated block: its depth factors and whether it ends a branch."""
    require(rule in DEPTH_RULES, "depth", rule, " or ".join(DEPTH_RULES))
    if rule == "none":
        return {}
    ends = branch_outputs(dims, branches)
    counts = count_branches(dims, ends)
    return {
        item.name: (depth_factors(rule, *counts[stack_of(item.name)]), item.name in ends)
        for item in dims
        if item.depth != 1.0 and stack_of(item.name) in counts
    }


def _tied_readouts(model: nn.Module, base: nn.Module, dims: list[Dimensions], rule: WidthRule) -> list[ScalePlan]:
    """A forward factor on every readout whose weight is an embedding's."""
    owners = {plain_name(name): module for name, module in unwrap(model).named_modules()}
    found = []
    for item in dims:
        places = [alias.rpartition(".")[0] for alias in item.aliases]
        readouts = [place for place in places if not isinstance(owners[place], nn.Embedding)]
        if item.role != "embedding" or len(readouts) == len(places):
            continue
        factor = rule.tied_multiplier(item.fan_out) / _own_output_scale(model, base)
        why = f"readout tied to {item.name}, width x{item.fan_out:g}"
        found += [ScalePlan(place, factor, "input", why) for place in readouts]
    return found


def _own_output_scale(model: nn.Module, base: nn.Module) -> float:
    """T5 multiplies the decoder's output by d^{-1/2} before a tied readout."""
    inner, other = unwrap(model), unwrap(base)
    sizes = getattr(inner, "model_dim", None), getattr(other, "model_dim", None)
    scales = getattr(getattr(inner, "config", None), "scale_decoder_outputs", False)
    return math.sqrt(sizes[1] / sizes[0]) if scales and sizes[0] and sizes[1] else 1.0


def _embedding_scales(model: nn.Module, base: nn.Module) -> list[ScalePlan]:
    """Embeddings that multiply by a number which grows with width (sqrt(d)) are put back to the base's number."""
    others = {plain_name(name): module for name, module in unwrap(base).named_modules()}
    found = []
    for raw, module in unwrap(model).named_modules():
        name = plain_name(raw)
        own, other = (getattr(each, "embed_scale", None) for each in (module, others.get(name)))
        if isinstance(own, float) and isinstance(other, float) and own != other:
            found.append(ScalePlan(name, other / own, "attribute:embed_scale", "embedding factor as in the base"))
    return found


def _count_roles(dims: list[Dimensions]) -> dict[str, int]:
    roles = [item.role for item in dims]
    return {role: roles.count(role) for role in dict.fromkeys(roles)}


def _why(item: Dimensions, gauge: float) -> str:
    told = [item.role]
    told += [f"fan-in x{item.fan_in:g}"] * (item.fan_in != 1.0)
    told += [f"fan-out x{item.fan_out:g}"] * (item.fan_out != 1.0)
    told += [f"layers x{item.depth:g}"] * (item.depth != 1.0)
    told += [f"attention 1/d as x{gauge:.3g}"] * (gauge != 1.0)
    told += ["also the readout"] * (item.role == "embedding" and len(item.aliases) > 1)
    return ", ".join(told)
