r"""`compose`: an initialization, a width rule, a depth rule and an optimizer as one plan.

One pipeline, beside a base (the model at which a rate was tuned) or beside the reference (`reference.py`):

    read       the structures of model and base, and every parameter beside its base (`dimensions.py`, `reference.py`)
    draw       the recipe's rows, carried to this width by the rule (`carried.py`; the model's own: `own_init.py`)
    move       scales of branches, attention, tied readouts and tables, exactly (`fold.py`, `attention.py`)
    rate       what the rules ask of weight, update and gradient, as the optimizer's multipliers (`relative.py`)
    finish     tables, zeros, the predicted loss, responses

Each part is a factor, so that the parts commute, and every row tells its own. At the base every number is exactly one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sigprop.errors import InputError, SigpropError, UnsupportedError, require
from sigprop.plans.multipliers import Sizes, multipliers
from sigprop.plans.optimizers import MATRIX_ONLY, algorithm_of
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.fold import carrying
from sigprop.plans.recipes.planning import completed, reproducibly, require_untouched
from sigprop.plans.recipes.predicted_plan import initial_loss
from sigprop.plans.recipes.registry import RECIPES
from sigprop.plans.recipes.rows import times
from sigprop.plans.rows import ParameterPlan, ScalePlan
from sigprop.plans.scaling.attention import AttentionScales, attention_scales, reference_attention_scales
from sigprop.plans.scaling.budget import run_settings, with_run
from sigprop.plans.scaling.builds import build_base
from sigprop.plans.scaling.carried import carried_from_base, carried_from_reference
from sigprop.plans.scaling.depth import DEPTH_RULES, DepthFactors, depth_factors
from sigprop.plans.scaling.dimensions import Dimensions, compare
from sigprop.plans.scaling.model_and_base import ModelAndBase, read_model_and_base
from sigprop.plans.scaling.own_init import own_inits
from sigprop.plans.scaling.reference import REFERENCE_LAYERS, REFERENCE_WIDTH, reference_dimensions, reference_sizes
from sigprop.plans.scaling.relative import depths_of, relative_sizes
from sigprop.plans.scaling.responses import responses
from sigprop.plans.scaling.tables import frequencies_in, table_step
from sigprop.plans.scaling.width_rules import WidthRule, width_rule
from sigprop.plans.scaling.zeros import with_zeros
from sigprop.plans.suggestion import ADAM_RATE, BESIDE_MUON, TARGETS, batch_factor
from sigprop.results import Init
from sigprop.sites import plain_name, unwrap
from sigprop.structure import Parameter, Structure, read_structure
from sigprop.theory.exponents import Alignment, read_optimizer

LARGEST_EXCESS = 1.05
"""How far above ln(classes) the predicted loss of a recipe may start."""


@dataclass(frozen=True)
class Beside:
    """A model beside its base, or beside the reference: what the rules compare, and what they ask."""

    model: nn.Module
    base: nn.Module | None
    dims: dict[str, Dimensions]
    pair: ModelAndBase
    rule: WidthRule | None
    depth: str = "none"
    scores: AttentionScales = field(default_factory=AttentionScales)
    depths: Mapping[str, tuple[DepthFactors, bool]] = field(default_factory=dict)
    reference_width: int = REFERENCE_WIDTH

    @property
    def structure(self) -> Structure | None:
        return self.pair.model

    def sizes(self) -> dict[str, Sizes]:
        """By parameter, relative to the base or the reference."""
        if self.rule is None:
            deep = {name: self.depths.get(name, (DepthFactors(), False)) for name in self.dims}
            return {
                name: Sizes(1.0, found.update, found.gradient).gauged(found.branch if ends else 1.0)
                for name, (found, ends) in deep.items()
            }
        asked = relative_sizes(list(self.dims.values()), self.rule, self.scores, dict(self.depths), self.pair)
        if self.base is not None:
            return asked
        assert self.structure is not None
        stream = (self.structure.width or self.reference_width) / self.reference_width
        return {
            name: reference_sizes(self.rule, self.dims[name], self.structure.parameters[name].role, stream, found)
            for name, found in asked.items()
        }


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
    attention: str | None = None,
    own_init: str | None = None,
    branches: Sequence[str] | None = None,
    reference_width: int = REFERENCE_WIDTH,
    zeros: Sequence[str] = (),
    tokens: int | None = None,
    batch_tokens: int | None = None,
    table_rate: str = "seen",
    surgery: bool = False,
    learnable: bool = False,
    match_epsilon: bool = False,
    **options: Any,
) -> Plan:
    """One plan of a recipe, a width rule (`mup`, `sp`, `neural_tangent`, `meta:s`), a depth rule and an optimizer.

    - `base`: a model, factory, configuration or width at which a learning rate was tuned; without it factors are
      relative to a layer of `reference_width` inputs and four layers.
    - `batch`: an input that suits model and base, for their traces: they tell branch ends, attentions, experts and tied
      readouts. With the recipe `own` and a base, shapes serve where a model cannot be traced, and
      `plan.meta["structure"]` says so.
    - `alignment` replaces the rule's assumption (`none`, or measured exponents); `attention`: `scale` (1/d, the default
      of muP) or `keep` (the model's own scale, the default otherwise).
    - `zeros`: what starts at zero, of `readout`, `query` and `branch ends`.
    - `tokens`, `batch_tokens`: how long the run is and how many tokens each step sees: `plan.meta["run"]` then holds
      rate, decay, betas and epsilon of the run (`budget.py`), which `plan.optimizers(model)` takes.
    - `table_rate`: `seen` gives a table of tokens that is only looked up the rate of how often its rows are seen
      (`tables.py`; without a base), `one` the rate itself.
    - With a base: `roles` names unclear parameters, `branches` the modules that end a residual branch, and `own_init`
      the model's own scheme where the base has no values.
    - `surgery=True` scales junctions by hooks, `learnable` makes their scales parameters, `match_epsilon` sets the
      norms' epsilon so that folding is exact to the last digit. `options` go to the recipe.
    """
    if recipe == "u_mup" and (width not in (None, "none") or depth != "none" or optimizer not in ("adam", "adamw")):
        raise InputError("u_mup brings its own width and depth rule, for adam and adamw: give none besides")
    read_optimizer(optimizer)
    require(depth in DEPTH_RULES, "depth", depth, " or ".join(DEPTH_RULES))
    require(reference_width >= 1, "reference_width", reference_width, "a positive number")
    require(table_rate in ("seen", "one"), "table_rate", table_rate, "seen or one")
    run = None if tokens is None and batch_tokens is None else run_settings(tokens, batch_tokens)
    rule = None if width in (None, "none") else width_rule(str(width), alignment)
    with reproducibly():
        built = None if base is None else build_base(model, base)
        if built is None:
            if roles or branches:
                raise InputError("roles= and branches= go with base=: without a base, both are read from the trace")
            pair = ModelAndBase(read_structure(model, batch) if structure is None else structure)
            dims = reference_dimensions(pair.required, reference_width)
        else:
            pair = read_model_and_base(model, built, batch, structure)
            dims = compare(model, built, roles, pair.model)
        beside = beside_of(model, built, dims, pair, rule, depth, attention, branches, reference_width)
        if recipe == "own" and built is not None:
            made = _own(beside, optimizer, own_init)
        else:
            options = _with_branch_exponent(recipe, depth, options)
            made = _drawn(beside, recipe, optimizer, options)
            made = completed(made, pair.required, optimizer, surgery, learnable, match_epsilon)
        made = rated(made, beside, optimizer, recipe)
        made.meta |= {"recipe": recipe, "width": width or "none"}
        if pair.model is None:
            return made
        if table_rate == "seen" and base is None and rule is not None:
            batch = TARGETS if run is None else run.batch_tokens
            made = with_expert_rates(with_seen_tables(made, pair.model, optimizer, batch), pair.model, optimizer, batch)
        made = with_zeros(made, pair.model, zeros)
        made = _with_initial_loss(made, pair.model)
        made.meta |= {"responses": responses(made, pair.model), "norms": pair.model.placement}
        made = with_run(made, run)
        made.check(model)
        return require_untouched(made, pair.model)


def parametrize(model: nn.Module, rule: str = "mup", *, base: Any, **options: Any) -> Plan:
    """A model's own draw carried from its base by a width rule: `compose` with the recipe `own`."""
    return compose(model, "own", width=rule, base=base, **options)


def beside_of(
    model: nn.Module,
    base: nn.Module | None,
    dims: Sequence[Dimensions],
    pair: ModelAndBase,
    rule: WidthRule | None,
    depth: str = "none",
    attention: str | None = None,
    branches: Sequence[str] | None = None,
    reference_width: int = REFERENCE_WIDTH,
) -> Beside:
    """The comparison, with what attention and depth ask."""
    scales = rule is not None and rule.scales_attention
    attention = attention or ("scale" if scales else "keep")
    require(attention in ("scale", "keep"), "attention", attention, "scale or keep")
    scores = AttentionScales()
    if attention == "scale" and base is not None:
        scores = attention_scales(model, pair)
    elif attention == "scale" and pair.model is not None:
        scores = reference_attention_scales(model, pair.model, reference_width)
    for name, (number, after) in pair.readout_scales().items():
        if rule is not None and any(item.name == name and item.role == "readout" for item in dims):
            scores.gauges[name] = 1.0 / number
            scores.outputs |= {name.rpartition(".")[0]: 1.0 / number} if after else {}
    if base is not None:
        depths = depths_of(list(dims), depth, branches, pair)
    else:
        depths = _reference_depths(pair.required, dims, depth)
    return Beside(model, base, {item.name: item for item in dims}, pair, rule, depth, scores, depths, reference_width)


def _reference_depths(
    structure: Structure, dims: Sequence[Dimensions], rule: str
) -> dict[str, tuple[DepthFactors, bool]]:
    """Depth factors of everything inside a branch, and whether it ends the branch as a factor."""
    found = {}
    ends = {name for junction in structure.junctions for name in junction.weights if junction.shift == 0.0}
    for item in dims:
        junction = structure.junction_of(structure.parameters[item.name])
        if rule == "none" or junction is None or item.depth == 1.0:
            continue
        branches = len(structure.streams[junction.stream])
        found[item.name] = depth_factors(rule, branches, branches / item.depth), item.name in ends
    return found


def own_plan(beside: Beside, optimizer: str) -> Plan:
    """The plan of two builds that are compared already: the model's own draw, and the rules."""
    return rated(_own(beside, optimizer, None), beside, optimizer)


def _own(beside: Beside, optimizer: str, scheme: str | None) -> Plan:
    """The model's own draw, carried from its base."""
    assert beside.base is not None
    dims = list(beside.dims.values())
    own, sizes = own_inits(beside.model, beside.base, dims, scheme), beside.sizes()
    rows = []
    for item in dims:
        traced = beside.pair.parameter(item.name)
        init = own[item.name].init(sizes[item.name].weight, replaces_depth=beside.depth != "none")
        kept = traced is not None and traced.frozen
        rows.append(
            ParameterPlan(
                item.name,
                item.shape,
                Init("keep") if kept else init,
                why=item.role,
                role=item.role if traced is None else traced.role,
            )
        )
    meta = {"recipe": "own", "structure": "traced" if beside.pair.known else f"by shapes: {beside.pair.reason}"}
    return Plan(rows, meta=meta | {"optimizer": optimizer})


def _drawn(beside: Beside, recipe: str, optimizer: str, options: dict[str, Any]) -> Plan:
    """The recipe's rows at this width, and their exact moves, junctions not folded yet."""
    scheme, structure = RECIPES[recipe], beside.pair.required
    made = scheme(structure, **options)
    if beside.rule is None:
        return made
    if beside.base is None:
        return carried_from_reference(made, scheme, structure, beside.dims, beside.rule.readout, options)
    if beside.pair.base is None:
        raise UnsupportedError(f"the base cannot be traced, which {recipe} needs: {beside.pair.reason}")
    weights = {name: beside.rule.factors(item).weight for name, item in beside.dims.items()}
    return carried_from_base(made, scheme, beside.pair.base, weights, options)


def rated(made: Plan, beside: Beside, optimizer: str, recipe: str = "own") -> Plan:
    """The plan with the rules' multipliers, the exact moves that its rows do not carry yet, and a tied readout."""
    own, structure = recipe == "own" and beside.base is not None, beside.structure
    scaled, asked = bool(made.junctions), beside.sizes()
    rows = []
    for row in made.parameters:
        place, item = beside.dims.get(row.name), beside.pair.parameter(row.name)
        if place is None or (item is not None and item.frozen):
            rows.append(row)
            continue
        deep, ends = beside.depths.get(row.name, (DepthFactors(), False))
        sizes = asked[row.name].gauged(1.0 / deep.branch if ends and scaled else 1.0)
        if not own:
            moved = beside.scores.gauges.get(row.name, 1.0) * (deep.branch if ends and not scaled else 1.0)
            row = replace(row, init=times(row.init, moved), why=f"{recipe}: {row.why}")
        alpha = 1.0 if beside.rule is None else beside.rule.alpha_hidden
        row = _multiplied(row, sizes, None if beside.rule is None else place, optimizer, alpha)
        row = replace(row, why=_why(row.why, place, beside, deep != DepthFactors()))
        row = _with_shifted_end(row, place, beside, scaled, optimizer)
        if beside.base is None and beside.rule is not None and structure is not None:
            row = _with_table_scale(row, structure, optimizer)
            as_readout = bool(made.meta.get("tied_as_readout"))
            row = _with_shaping_rate(row, structure, optimizer, beside.reference_width, as_readout)
        rows.append(row)
    meta = {**made.meta, "depth": beside.depth, "optimizer": optimizer, "roles": _count_roles(beside.dims)}
    meta |= {"reference_width": beside.reference_width} if beside.base is None and beside.rule is not None else {}
    made = Plan(rows, made.junctions, made.scales + beside.scores.scales, meta)
    return made if beside.rule is None else _with_tied_readout(made, beside, optimizer)


def _why(told: str, item: Dimensions, beside: Beside, deep: bool) -> str:
    parts = []
    if beside.rule is not None:
        parts += [f"fan-in x{item.fan_in:.4g}"] * (item.fan_in != 1.0)
        parts += [f"fan-out x{item.fan_out:.4g}"] * (beside.base is not None and item.fan_out != 1.0)
        gauge, table = beside.scores.gauges.get(item.name, 1.0), beside.pair.table_scale(item.name)
        told_gauge = "the model's own multiplier, weight" if item.role == "readout" else "attention 1/d as"
        parts += [f"{told_gauge} x{gauge:.3g}"] * (gauge != 1.0)
        parts += [f"the model multiplies its rows by x{table:.3g}"] * (table != 1.0)
    told = f"{told}; {beside.rule.name}: {', '.join(parts)}" if beside.rule is not None and parts else told
    return f"{told}; {beside.depth}: layers x{item.depth:.4g}" if deep else told


def _with_shifted_end(
    row: ParameterPlan, place: Dimensions, beside: Beside, scaled: bool, optimizer: str
) -> ParameterPlan:
    """Gains that end a branch as `1 + w` carry the branch scale in what they are, not in a factor of `w`."""
    shift = beside.pair.ends().get(row.name, 0.0)
    deep, _ = beside.depths.get(row.name, (DepthFactors(), False))
    if not shift or scaled or deep.branch == 1.0 or beside.structure is None:
        return row
    value = beside.structure.parameters[row.name].constant
    return carrying(replace(row, init=Init("constant", value=value) if value is not None else row.init), deep.branch,
                    optimizer, shift)  # fmt: skip


def _count_roles(dims: Mapping[str, Dimensions]) -> dict[str, int]:
    roles = [item.role for item in dims.values()]
    return {role: roles.count(role) for role in dict.fromkeys(roles)}


def tied_factor(beside: Beside, made: Plan | None = None) -> tuple[Parameter | Dimensions, float] | None:
    r"""A table that is also the readout, and the factor of what the readout reads.

    A table of fixed size takes `update 1` and the factor `m^{-A}`, `m` the ratio of widths, of which a recipe may have
    given `m^{-1/2}`.
    """
    assert beside.rule is not None
    tied = _tied_table(beside)
    if tied is None:
        return None
    ratio = beside.dims[tied.name].fan_out
    given = made is not None and (made.meta.get("tied_as_readout") or "tied_factor" in made.meta)
    factor = beside.rule.tied_multiplier(ratio) * (ratio**0.5 if given else 1.0) * beside.pair.table_scale(tied.name)
    if beside.base is None:
        return tied, min(factor, 1.0)
    return tied, factor / _own_output_scale(beside.model, beside.base)


def _tied_table(beside: Beside) -> Parameter | Dimensions | None:
    """Read from the trace; without one, a parameter that an embedding shares with another module."""
    if beside.structure is not None:
        return beside.structure.tied_table
    owners = {plain_name(name): module for name, module in unwrap(beside.model).named_modules()}
    for item in beside.dims.values():
        kinds = {isinstance(owners[alias.rpartition(".")[0]], nn.Embedding) for alias in item.aliases}
        if kinds == {True, False}:
            return item
    return None


def _own_output_scale(model: nn.Module, base: nn.Module) -> float:
    """T5 multiplies the decoder's output by d^{-1/2} before a tied readout."""
    inner, other = unwrap(model), unwrap(base)
    sizes = getattr(inner, "model_dim", None), getattr(other, "model_dim", None)
    scales = getattr(getattr(inner, "config", None), "scale_decoder_outputs", False)
    return math.sqrt(sizes[1] / sizes[0]) if scales and sizes[0] and sizes[1] else 1.0


def _with_tied_readout(made: Plan, beside: Beside, optimizer: str) -> Plan:
    r"""The factor in the norm before a tied readout, or as a forward factor where there is none.

    A table that the recipe draws for the readout, of size `d^{-1/2}`, is the same function written as `m^{-1/2}` times
    that table; where the model multiplies its rows, that factor is in the rates already.
    """
    found = tied_factor(beside, made)
    if found is None:
        return made
    assert beside.rule is not None
    (tied, factor), rows, scales = found, [], list(made.scales)
    ratio, names = beside.dims[tied.name].fan_out, beside.structure.readout_input if beside.structure else ()
    scaled = beside.structure is not None and tied.name in beside.structure.table_scales
    for row in made.parameters:
        if row.name == tied.name and made.meta.get("tied_as_readout") and not scaled:
            told = f"{row.why}; {beside.rule.name}: also the readout, size x{ratio**-0.5:.4g}"
            row = replace(_multiplied(row, Sizes().gauged(ratio**-0.5), None, optimizer), why=told)
        rows.append(carrying(row, factor, optimizer) if row.name in names else row)
    if not names and factor != 1.0:
        place = _readout_module(beside.model, tied.name)
        scales.append(ScalePlan(place, factor, "input", f"readout tied to {tied.name}, no norm before it"))
    return Plan(rows, made.junctions, scales, made.meta)


def _readout_module(model: nn.Module, tied: str) -> str:
    """The module that uses a table as its weight but is no embedding."""
    table = {plain_name(name): item for name, item in unwrap(model).named_parameters()}[tied]
    for name, module in unwrap(model).named_modules():
        if getattr(module, "weight", None) is table and not isinstance(module, nn.Embedding):
            return plain_name(name)
    raise InputError(f"{tied} is also the readout, but no module holds it: scale the readout in the model")


def _with_initial_loss(made: Plan, structure: Structure) -> Plan:
    """The plan with its predicted loss; a recipe whose logits start too large has them made smaller, and says so."""
    try:
        found = initial_loss(structure, made)
    except SigpropError:
        return made
    if found is None or math.isnan(found[1]):
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
    k = options.get("k", RECIPES[recipe].default("k"))
    return {**options, "alpha": 2.0, "k": k * REFERENCE_LAYERS}


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


def with_seen_tables(made: Plan, structure: Structure, optimizer: str, tokens: int) -> Plan:
    """Rates of tables of tokens that are only looked up, by how often their rows are seen; Adam's alone follow it."""
    kind = optimizer.partition(":")[0]
    if kind not in ("adam", "adamw", *MATRIX_ONLY):
        return made
    rate = ADAM_RATE if kind in ("adam", "adamw", "adamh") else BESIDE_MUON
    rows = []
    for row in made.parameters:
        item = structure.parameters.get(row.name)
        looked_up = item is not None and row.role == "embedding" and not (item.tied or item.frozen)
        if not looked_up or row.name not in structure.starting or row.init.size == 0.0 or row.init.kind == "keep":
            rows.append(row)
            continue
        number = structure.table_scales[row.name].number if row.name in structure.table_scales else 1.0
        step = table_step(frequencies_in(structure.batch, row.shape[0]), tokens)
        row = _multiplied(row, Sizes(1.0, step * row.init.size * number / rate), None, "adamw")
        rows.append(replace(row, why=f"{row.why}; a step changes rows by x{step:.3g} of their size, as often as seen"))
    return replace(made, parameters=rows)


def with_expert_rates(made: Plan, structure: Structure, optimizer: str, tokens: int) -> Plan:
    """An expert sees its share of the batch, and takes the rate of a batch of that size; routers see all of it.

    The rule for batches is `suggestion.batch_factor`, swept on dense models; on experts it was not.
    """
    share = structure.expert_share
    if share == 1.0 or optimizer.partition(":")[0] not in ("adam", "adamw", *MATRIX_ONLY):
        return made
    factor = batch_factor(max(1, round(tokens * share))) / batch_factor(tokens)
    rows = []
    for row in made.parameters:
        item = structure.parameters.get(row.name)
        if item is not None and item.expert and not item.frozen and factor != 1.0:
            algorithm = algorithm_of(optimizer, row.role, row.shape)
            sizes = Sizes(1.0, factor)
            lr, decay, eps = multipliers(sizes, algorithm)
            told = f"{row.why}; an expert sees x{share:.3g} of the tokens"
            row = replace(row, lr=row.lr * lr, weight_decay=row.weight_decay * decay, eps=row.eps * eps, why=told)
        rows.append(row)
    return replace(made, parameters=rows)


def _multiplied(
    row: ParameterPlan, sizes: Sizes, dims: Dimensions | None, optimizer: str, alpha: float = 1.0
) -> ParameterPlan:
    algorithm = algorithm_of(optimizer, row.role, row.shape)
    matrix = dims.matrix if dims is not None and algorithm == optimizer else None
    lr, decay, eps = multipliers(sizes, algorithm, matrix, alpha)
    return replace(row, lr=row.lr * lr, weight_decay=row.weight_decay * decay, eps=row.eps * eps)
