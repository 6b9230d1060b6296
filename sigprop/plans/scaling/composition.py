"""`compose`: an initialization, a width rule, a depth rule and an optimizer as one plan.

The recipe says how every parameter is drawn and how branches are scaled at any size; the rules say what learning rate,
decay and epsilon are multiplied by. Each part is a factor, so that the parts commute, and every row tells its own.
Without `base` a rule compares the model with a fixed reference (`reference.py`); with one, all factors are one there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from sigprop.errors import InputError, SigpropError, UnsupportedError, require
from sigprop.plans.recipes import plan as plan_recipe
from sigprop.plans.recipes.fold import carrying
from sigprop.plans.recipes.frozen import require_untouched
from sigprop.plans.recipes.optimizers import Sizes, multipliers
from sigprop.plans.recipes.predicted_plan import initial_loss
from sigprop.plans.recipes.registry import get_recipe
from sigprop.plans.recipes.rows import times
from sigprop.plans.scaling.builds import build_base
from sigprop.plans.scaling.depth import DEPTH_RULES, DepthFactors, depth_factors
from sigprop.plans.scaling.dimensions import Dimensions, compare
from sigprop.plans.scaling.reference import REFERENCE_LAYERS, REFERENCE_WIDTH, reference_dimensions, reference_sizes
from sigprop.plans.scaling.responses import responses
from sigprop.plans.scaling.width import WidthRule, width_rule
from sigprop.plans.scaling.zeros import with_zeros
from sigprop.results import ParameterPlan, Plan, ScalePlan
from sigprop.results.optimizers import trained_by
from sigprop.structure import Parameter, Structure, read_structure
from sigprop.theory.exponents import Alignment, read_optimizer

LARGEST_EXCESS = 1.05
"""How far above ln(classes) the predicted loss of a recipe may start."""


def compose(
    model: nn.Module,
    recipe: str = "own",
    *,
    width: str | None = None,
    depth: str = "none",
    optimizer: str = "adamw",
    base: Any = None,
    batch: Any = None,
    structure: Structure | None = None,
    alignment: Alignment | str | None = None,
    roles: Mapping[str, str] | None = None,
    reference_width: int = REFERENCE_WIDTH,
    zeros: Sequence[str] = (),
    **options: Any,
) -> Plan:
    """One plan of a recipe, a width rule (`mup`, `sp`, `neural_tangent`, `meta:s`), a depth rule and an optimizer.

    `base`: a model, factory, configuration or width at which a learning rate was tuned; without it factors are relative
    to a layer of `reference_width` inputs and four layers. `zeros`: what starts at zero, of `readout`, `query` and
    `branch ends`. `options` go to the recipe; the others as in
    `sigprop.plans.recipes.plan` and `sigprop.plans.scaling.parametrize`.
    """
    if recipe == "u_mup" and (width not in (None, "none") or depth != "none" or optimizer not in ("adam", "adamw")):
        raise InputError("u_mup brings its own width and depth rule, for adam and adamw: give none besides")
    read_optimizer(optimizer)
    require(depth in DEPTH_RULES, "depth", depth, " or ".join(DEPTH_RULES))
    require(reference_width >= 1, "reference_width", reference_width, "a positive number")
    rule = None if width in (None, "none") else width_rule(str(width), alignment)
    structure = read_structure(model, batch) if structure is None else structure
    options = _with_branch_exponent(recipe, depth, options)
    made = plan_recipe(model, recipe, optimizer=optimizer, structure=structure, **options)
    dims = _compared(model, structure, base, roles, reference_width)
    rows = []
    for row in made.parameters:
        if row.name not in structure.parameters or structure.parameters[row.name].frozen:
            rows.append(row)
            continue
        item, place = structure.parameters[row.name], dims[row.name]
        row = replace(row, why=f"{recipe}: {row.why}")
        row = _with_width(row, item, place, rule, structure, optimizer, reference_width, base is not None)
        if base is None and rule is not None:
            row = _with_table_scale(row, structure, optimizer)
            row = _with_shaping_rate(row, structure, optimizer, reference_width, bool(made.meta.get("tied_as_readout")))
        rows.append(_with_depth(row, item, place, depth, bool(made.junctions), structure, optimizer))
    meta = {**made.meta, "recipe": recipe, "width": width or "none", "depth": depth, "optimizer": optimizer}
    meta |= {"reference_width": reference_width} if base is None and rule is not None else {}
    made = Plan(rows, made.junctions, made.scales, meta)
    if rule is not None:
        made = _with_tied_readout(made, structure, dims, rule, optimizer)
    made = with_zeros(made, structure, zeros)
    made = _with_initial_loss(made, structure)
    made.meta |= {"responses": responses(made, structure), "norms": structure.placement}
    made.check(model)
    return require_untouched(made, structure)


def _with_initial_loss(made: Plan, structure: Structure) -> Plan:
    """The plan with its predicted loss; a recipe whose logits start too large has them made smaller, and says so."""
    try:
        found = initial_loss(structure, made)
    except SigpropError:
        return made
    if found is None:
        return made
    loss, excess = found
    if excess <= LARGEST_EXCESS or made.meta["recipe"] == "own":
        return replace(made, meta={**made.meta, "initial_loss": loss})
    factor = math.sqrt(0.5 / excess)
    told = f"draw x{factor:.3g}: the loss would start {excess:.3g} above ln(classes)"
    rows = [
        replace(row, init=times(row.init, factor), why=f"{row.why}; {told}") if row.role == "readout" else row
        for row in made.parameters
    ]
    repaired = replace(made, parameters=rows)
    again = initial_loss(structure, repaired)
    if again is None or again[1] > LARGEST_EXCESS:
        raise UnsupportedError(
            f"{made.meta['recipe']}: the loss would start at {loss:.3g}, {excess:.3g} above ln(classes), and a smaller "
            "readout does not mend that; choose another recipe"
        )
    return replace(repaired, meta={**made.meta, "initial_loss": again[0], "readout_factor": factor})


def _with_branch_exponent(recipe: str, depth: str, options: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose branches follow `b^2 = k / N^alpha` takes the exponent of the depth rule."""
    if depth != "linear" or recipe not in ("unit", "depth_scaling") or "alpha" in options:
        return options
    k = options.get("k", get_recipe(recipe).default("k"))
    return {**options, "alpha": 2.0, "k": k * REFERENCE_LAYERS}


def _compared(
    model: nn.Module, structure: Structure, base: Any, roles: Mapping[str, str] | None, reference_width: int
) -> dict[str, Dimensions]:
    if base is None:
        if roles:
            raise InputError("roles= goes with base=: without a base, roles are read from the model's trace")
        return {item.name: item for item in reference_dimensions(structure, reference_width)}
    return {item.name: item for item in compare(model, build_base(model, base), roles)}


def _with_width(
    row: ParameterPlan,
    item: Parameter,
    dims: Dimensions,
    rule: WidthRule | None,
    structure: Structure,
    optimizer: str,
    reference_width: int,
    has_base: bool,
) -> ParameterPlan:
    if rule is None:
        return row
    stream = (structure.width or reference_width) / reference_width
    sizes = rule.factors(dims) if has_base else reference_sizes(rule, dims, item.role, stream)
    extra = sizes.weight * dims.fan_in**0.5 if dims.role in ("hidden", "readout") and item.role != "router" else 1.0
    extra = extra if has_base else min(extra, 1.0)
    told = [f"fan-in x{dims.fan_in:.4g}"] * (dims.fan_in != 1.0)
    told += [f"fan-out x{dims.fan_out:.4g}"] * (has_base and dims.fan_out != 1.0)
    told += [f"draw x{extra:.4g}"] * (abs(extra - 1.0) > 1e-12)
    row = _multiplied(row, sizes, dims, optimizer, rule.alpha_hidden)
    if abs(extra - 1.0) > 1e-12:
        row = replace(row, init=times(row.init, extra))
    return replace(row, why=f"{row.why}; {rule.name}: {', '.join(told)}") if told else row


def _with_table_scale(row: ParameterPlan, structure: Structure, optimizer: str) -> ParameterPlan:
    """Rates of a table whose rows the model multiplies by a number: those of the rows that then enter the stream."""
    if row.name not in structure.table_scales:
        return row
    number = structure.table_scales[row.name].number
    row = _multiplied(row, Sizes().gauged(1.0 / number), None, optimizer)
    return replace(row, why=f"{row.why}; the model multiplies its rows by {number:.4g}")


def _with_shaping_rate(
    row: ParameterPlan, structure: Structure, optimizer: str, reference_width: int, drawn_as_readout: bool
) -> ParameterPlan:
    r"""Rates of the tables that training has to shape: positions, and a table that is also the readout.

    A step changes their entries by the share of their size by which it changes those of the reference layer, which
    have the size `128^{-1/2}`. Rows of tokens that are only looked up are as good as drawn, and keep the rate one; so
    do all with SGD, whose steps follow the gradient.
    """
    tied = structure.tied_table is not None and structure.tied_table.name == row.name
    shaped = tied and not drawn_as_readout if row.role == "embedding" else row.role == "positional"
    if not shaped or row.name not in structure.starting or row.init.std == 0.0 or read_optimizer(optimizer).gradient:
        return row
    number = structure.table_scales[row.name].number if row.name in structure.table_scales else 1.0
    size = row.init.std * number * math.sqrt(reference_width)
    row = _multiplied(row, Sizes(size, size), None, optimizer)
    told = "also the readout" if tied else "positions"
    return replace(row, why=f"{row.why}; {told}: size x{size:.4g} of the reference layer's")


def _with_depth(
    row: ParameterPlan,
    item: Parameter,
    dims: Dimensions,
    rule: str,
    scaled: bool,
    structure: Structure,
    optimizer: str,
) -> ParameterPlan:
    """Rates inside a branch; the branch scale too, where the recipe has none of its own."""
    junction = structure.junction_of(item)
    if rule == "none" or junction is None or dims.depth == 1.0:
        return row
    branches = len(structure.streams[junction.stream])
    found = depth_factors(rule, branches, branches / dims.depth)
    row = _multiplied(row, Sizes(1.0, found.update, found.gradient), None, optimizer)
    told = f"{row.why}; {rule}: layers x{dims.depth:.4g}"
    row = replace(row, why=told)
    last = next((other for other in structure.junctions if item.name in other.weights), None)
    if scaled or last is None or found == DepthFactors():
        return row
    return carrying(row, found.branch, optimizer, last.shift)


def _multiplied(
    row: ParameterPlan, sizes: Sizes, dims: Dimensions | None, optimizer: str, alpha: float = 1.0
) -> ParameterPlan:
    matrix = dims.matrix if dims is not None and trained_by(optimizer, row.role, row.shape) == "muon" else None
    lr, decay, eps = multipliers(sizes, optimizer, matrix, alpha)
    return replace(row, lr=row.lr * lr, weight_decay=row.weight_decay * decay, eps=row.eps * eps)


def _with_tied_readout(
    made: Plan, structure: Structure, dims: Mapping[str, Dimensions], rule: WidthRule, optimizer: str
) -> Plan:
    r"""A table that is also the readout, with a factor on what the readout reads.

    A table of fixed size takes `update 1` and the factor `m^{-A}`, `m` the ratio of widths, of which the recipe may
    have given `m^{-1/2}`. One that the recipe draws for the readout, of size `d^{-1/2}`, is the same function written
    as `m^{-1/2}` times that table; where the model multiplies its rows, that factor is in the rates already.
    """
    tied = structure.tied_table
    if tied is None:
        return made
    ratio = dims[tied.name].fan_out
    shrinks = bool(made.meta.get("tied_as_readout"))
    scaled = tied.name in structure.table_scales
    factor = rule.tied_multiplier(ratio) * (ratio**0.5 if shrinks or "tied_factor" in made.meta else 1.0)
    factor = min(factor, 1.0) if "reference_width" in made.meta else factor
    gauge = Sizes().gauged(ratio**-0.5 if shrinks and not scaled else 1.0)
    rows, scales = [], list(made.scales)
    for row in made.parameters:
        if row.name == tied.name and shrinks and not scaled:
            told = f"{row.why}; {rule.name}: also the readout, size x{ratio**-0.5:.4g}"
            row = replace(_multiplied(row, gauge, None, optimizer), why=told)
        if row.name in structure.readout_input:
            row = carrying(row, factor, optimizer)
        rows.append(row)
    if not structure.readout_input and factor != 1.0:
        scales.append(ScalePlan(_readout_module(structure, tied), factor, "input", "tied readout, no norm before it"))
    return Plan(rows, made.junctions, scales, made.meta)


def _readout_module(structure: Structure, tied: Parameter) -> str:
    """The module that uses a table as its weight but is no embedding."""
    assert structure.model is not None
    table = structure.model.get_parameter(tied.name)
    for name, module in structure.model.named_modules():
        if getattr(module, "weight", None) is table and not isinstance(module, nn.Embedding):
            return name
    raise InputError(f"{tied.name} is also the readout, but no module holds it: scale the readout in the model")
