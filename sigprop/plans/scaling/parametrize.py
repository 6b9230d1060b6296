"""`parametrize`: a plan that carries a base model's initialization and learning rates to another width and depth.

The steps, each in its own file: build the base, compare dimensions, find the model's own initialization,
take the width rule's sizes, gauge the attention scale and the branch scale into them, and turn sizes into the
optimizer's multipliers. At the base width and depth every number is exactly one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from sigprop.errors import require
from sigprop.plans.recipes.fold import carrying
from sigprop.plans.recipes.optimizers import Sizes, multipliers
from sigprop.plans.scaling.attention import AttentionScales, attention_scales
from sigprop.plans.scaling.builds import build_base
from sigprop.plans.scaling.depth import (
    DEPTH_RULES,
    DepthFactors,
    branch_outputs,
    count_branches,
    depth_factors,
    stack_of,
    with_depth,
)
from sigprop.plans.scaling.dimensions import Dimensions, compare
from sigprop.plans.scaling.model_and_base import ModelAndBase, read_model_and_base
from sigprop.plans.scaling.own_init import own_inits
from sigprop.plans.scaling.responses import responses
from sigprop.plans.scaling.width import WidthRule, width_rule
from sigprop.results import Init, ParameterPlan, Plan, ScalePlan
from sigprop.results.application import plain_name, unwrap
from sigprop.results.optimizers import trained_by
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
    batch: Any = None,
) -> Plan:
    """A plan for any model by comparing it with its base.

    - `base`: a smaller (or larger) build, a factory without arguments, a configuration, or a width.
    - `rule`: `mup`, `neural_tangent`, `sp`, or `meta:s`; `depth`: `none`, `sqrt`, `linear`, `dslm`.
    - `alignment` replaces the rule's assumption (`none`, or measured exponents).
    - `attention`: `scale` (1/d, the default of muP) or `keep` (the model's own scale, the default otherwise).
    - `roles` names unclear parameters, `branches` the modules that end a residual branch, and `own_init` the
      model's own scheme where the base has no values.
    - `batch`: an input that suits model and base, for their traces: they tell branch ends, attentions, experts and
      tied readouts. What cannot be traced is read off names and shapes, and `plan.meta["structure"]` says so.
    """
    width = width_rule(rule, alignment)
    base = build_base(model, base)
    pair = read_model_and_base(model, base, batch)
    dims = compare(model, base, roles, pair.model)
    return plan_between(model, base, dims, width, optimizer, depth, attention, own_init, branches, pair)


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
    pair: ModelAndBase | None = None,
) -> Plan:
    """The plan of two builds whose dimensions are already compared."""
    pair = ModelAndBase(reason="not traced") if pair is None else pair
    read_optimizer(optimizer)
    own = own_inits(model, base, dims, own_init)
    attention = attention or ("scale" if width.scales_attention else "keep")
    require(attention in ("scale", "keep"), "attention", attention, "scale or keep")
    scores = attention_scales(model, base, dims, pair) if attention == "scale" else AttentionScales()
    factors = relative_sizes(dims, width, scores, depth, branches, pair)
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
                why=_why(item, scores.gauges.get(item.name, 1.0), pair.table_scale(item.name)),
                role=item.role,
            )
        )
    rows = _with_shifted_ends(rows, dims, pair, depth, optimizer)
    rows, tied = _with_tied_readouts(rows, _tied_readouts(model, base, dims, width, pair), pair, optimizer)
    scales = scores.scales + tied + ([] if pair.known else _embedding_scales(model, base))
    meta = {"recipe": width.name, "optimizer": optimizer, "depth": depth, "roles": _count_roles(dims)}
    meta["structure"] = "traced" if pair.known else f"by names and shapes: {pair.reason}"
    made = Plan(rows, scales=scales, meta=meta)
    if pair.model is not None:
        made.meta |= {"responses": responses(made, pair.model), "norms": pair.model.placement}
    return made


def tied_gauges(
    model: nn.Module, base: nn.Module, dims: list[Dimensions], width: WidthRule, pair: ModelAndBase
) -> dict[str, float]:
    """By parameter of the norm before a tied readout: the factor that it carries."""
    scales = _tied_readouts(model, base, dims, width, pair)
    names = pair.model.readout_input if pair.model is not None and len(scales) == 1 else ()
    return dict.fromkeys(names, scales[0].factor) if names else {}


def _with_shifted_ends(
    rows: list[ParameterPlan], dims: list[Dimensions], pair: ModelAndBase, depth: str, optimizer: str
) -> list[ParameterPlan]:
    """Gains that end a branch as `1 + w` carry the branch scale in what they are, not in a factor of `w`."""
    shifts = {name: shift for name, shift in pair.ends().items() if shift}
    found = []
    for row, item in zip(rows, dims, strict=True):
        counts = pair.branches(row.name) if row.name in shifts else None
        if counts is not None and depth != "none" and pair.model is not None:
            value = pair.model.parameters[row.name].constant
            start = replace(row, init=Init("constant", value=value) if value is not None else row.init)
            row = carrying(start, depth_factors(depth, *counts).branch, optimizer, shifts[item.name])
        found.append(row)
    return found


def _with_tied_readouts(
    rows: list[ParameterPlan], scales: list[ScalePlan], pair: ModelAndBase, optimizer: str
) -> tuple[list[ParameterPlan], list[ScalePlan]]:
    """A factor of the readout's input in the rows of the norm before it, where the trace shows one."""
    names = pair.model.readout_input if pair.model is not None else ()
    if len(scales) != 1 or not names:
        return rows, scales
    factor = scales[0].factor
    return [carrying(row, factor, optimizer) if row.name in names else row for row in rows], []


def relative_sizes(
    dims: list[Dimensions],
    width: WidthRule,
    scores: AttentionScales,
    depth: str = "none",
    branches: Sequence[str] | None = None,
    pair: ModelAndBase | None = None,
) -> dict[str, Sizes]:
    """By parameter: the sizes of weight, update and gradient that the rules ask for, relative to the base."""
    depths = _depths(dims, depth, branches, pair)
    found = {}
    for item in dims:
        deep, ends = depths.get(item.name, (DepthFactors(), False))
        gauge = scores.gauges.get(item.name, 1.0) / (1.0 if pair is None else pair.table_scale(item.name))
        found[item.name] = with_depth(width.factors(item), deep, ends).gauged(gauge)
    return found


def output_scales(
    dims: list[Dimensions],
    scores: AttentionScales,
    depth: str = "none",
    branches: Sequence[str] | None = None,
    pair: ModelAndBase | None = None,
) -> dict[str, float]:
    """By module: what the gauges and the branch scale multiply its output with, relative to the base."""
    found = {item.name.rpartition(".")[0]: 1.0 for item in dims}
    for name, (deep, ends) in _depths(dims, depth, branches, pair).items():
        if ends:
            found[name.rpartition(".")[0]] = deep.branch
    return found | scores.outputs | (pair.tables_scaled_outside() if pair is not None else {})


def _depths(
    dims: list[Dimensions], rule: str, branches: Sequence[str] | None, pair: ModelAndBase | None
) -> dict[str, tuple[DepthFactors, bool]]:
    """For every parameter inside a branch: its depth factors and whether it ends the branch, as a factor."""
    require(rule in DEPTH_RULES, "depth", rule, " or ".join(DEPTH_RULES))
    if rule == "none":
        return {}
    if branches is None and pair is not None and pair.known and pair.ends():
        shifts = pair.ends()
        counts = {item.name: pair.branches(item.name) for item in dims}
        return {
            name: (depth_factors(rule, *count), name in shifts and shifts[name] == 0.0)
            for name, count in counts.items()
            if count is not None and count[0] != count[1]
        }
    ends = branch_outputs(dims, branches)
    counts = count_branches(dims, ends)
    return {
        item.name: (depth_factors(rule, *counts[stack_of(item.name)]), item.name in ends)
        for item in dims
        if item.depth != 1.0 and stack_of(item.name) in counts
    }


def _tied_readouts(
    model: nn.Module, base: nn.Module, dims: list[Dimensions], rule: WidthRule, pair: ModelAndBase
) -> list[ScalePlan]:
    """A forward factor on every readout whose weight is an embedding's."""
    owners = {plain_name(name): module for name, module in unwrap(model).named_modules()}
    found = []
    for item in dims:
        places = [alias.rpartition(".")[0] for alias in item.aliases]
        readouts = [place for place in places if not isinstance(owners[place], nn.Embedding)]
        if item.role != "embedding" or len(readouts) == len(places):
            continue
        factor = rule.tied_multiplier(item.fan_out) * pair.table_scale(item.name) / _own_output_scale(model, base)
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


def _why(item: Dimensions, gauge: float, table: float) -> str:
    told = [item.role]
    told += [f"fan-in x{item.fan_in:g}"] * (item.fan_in != 1.0)
    told += [f"fan-out x{item.fan_out:g}"] * (item.fan_out != 1.0)
    told += [f"layers x{item.depth:g}"] * (item.depth != 1.0)
    told += [f"attention 1/d as x{gauge:.3g}"] * (gauge != 1.0)
    told += [f"the model multiplies its rows by x{table:.3g}"] * (table != 1.0)
    told += ["also the readout"] * (item.role == "embedding" and len(item.aliases) > 1)
    return ", ".join(told)
