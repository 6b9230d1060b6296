r"""`plan` and `compose`: an initialization, a width rule, a depth rule and an optimizer as one plan.

One pipeline, beside a base (the model at which a rate was tuned) or beside the reference (`beside.py`):

    read       the structures of model and base, and every parameter beside its base (`dimensions.py`, `beside.py`)
    init       the recipe's rows, taken to this width by the rule, or the model's own (`initial_sizes.py`)
    move       scales of branches, attention, tied readouts and tables, exactly (`attention.py`, `tables.py`)
    rate       what the rules ask of weight, update and gradient, as the optimizer's multipliers
    finish     tables, zeros, the predicted loss, responses

Each part is a factor, so that the parts commute, and every row tells its own. At the base every number is exactly one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from sigprop.errors import InputError, UnknownNameError, UnsupportedError, require
from sigprop.plans.exponents import Alignment, read_optimizer
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.planned_states import with_initial_loss
from sigprop.plans.recipes.planning import completed, reproducibly, require_untouched, with_factor
from sigprop.plans.recipes.rows import RECIPES, multiplied, times, with_inits
from sigprop.plans.rows import ParameterPlan
from sigprop.plans.scaling.beside import (
    REFERENCE_LAYERS,
    REFERENCE_WIDTH,
    Beside,
    Rules,
    beside_of,
    reference_dimensions,
)
from sigprop.plans.scaling.budget import responses, run_settings, with_run
from sigprop.plans.scaling.depth import DEPTH_RULES
from sigprop.plans.scaling.dimensions import Dimensions, compare
from sigprop.plans.scaling.initial_sizes import own_inits, scaled_from_base, scaled_from_reference
from sigprop.plans.scaling.model_and_base import ModelAndBase, build_base, read_model_and_base
from sigprop.plans.scaling.tables import (
    with_expert_rates,
    with_seen_tables,
    with_shaping_rate,
    with_table_scale,
    with_tied_factor,
)
from sigprop.plans.scaling.width_rules import WIDTH_RULES, width_rule
from sigprop.plans.suggestion import TARGETS
from sigprop.results import Init
from sigprop.results.parameters import KEEP
from sigprop.structure import Structure, structure_of

ZEROS = ("readout", "query", "branch ends")
"""What may start at zero."""


def plan(model: nn.Module, recipe: str = "own", *, width: str | None = None, base: Any = None, **options: Any) -> Plan:
    """A prescription for every parameter of a model: a recipe, a width rule, a depth rule and an optimizer in one.

    `sp.plan(model, "unit", width="mup", optimizer="adamw")`. Recipes (`unit`, `deepscale`, `xavier`, ..., `own`: the
    model's own) say how parameters are initialized; width rules (`mup`, `sp`, `neural_tangent`, `meta:s`) and depth
    rules (`sqrt`, `linear`) what their learning rates are multiplied by. A width rule may stand in the recipe's place.
    `base`: the model or width that a learning rate was tuned at; without it rates are those of a layer of 128 inputs.
    Other options: `sigprop.plans.scaling.compose`.
    """
    name = recipe.lower()
    if name.partition(":")[0] in WIDTH_RULES:
        if width is not None:
            raise InputError(f"{recipe} is a width rule and so is {width}: give one, and a recipe before it")
        name, width = "own", name
    if name not in RECIPES:
        raise UnknownNameError("recipe", recipe, [*RECIPES, *WIDTH_RULES])
    if name == "own" and base is not None:
        width = width or "sp"
    return compose(model, name, width=width, base=base, **options)


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
            pair = ModelAndBase(structure_of(model, batch) if structure is None else structure)
            dims = reference_dimensions(pair.required, reference_width)
        else:
            pair = read_model_and_base(model, built, batch, structure)
            dims = compare(model, built, roles, pair.model)
        beside = beside_of(model, built, dims, pair, Rules(rule, depth, attention, branches, reference_width))
        if recipe == "own" and built is not None:
            made = _own(beside, optimizer, own_init)
        else:
            made = _by_recipe(beside, recipe, _with_branch_exponent(recipe, depth, options))
            made = completed(made, pair.required, optimizer, surgery, learnable, match_epsilon)
        made = _rated(made, beside, optimizer, recipe)
        made.meta |= {"recipe": recipe, "width": width or "none"}
        if pair.model is None:
            return made
        if table_rate == "seen" and base is None and rule is not None:
            seen = TARGETS if run is None else run.batch_tokens
            made = with_expert_rates(with_seen_tables(made, pair.model, optimizer, seen), pair.model, optimizer, seen)
        made = with_initial_loss(_with_zeros(made, pair.model, zeros), pair.model)
        made.meta |= {"responses": responses(made, pair.model), "norms": pair.model.placement}
        made = with_run(made, run)
        made.check(model)
        return require_untouched(made, pair.model)


def own_plan(beside: Beside, optimizer: str) -> Plan:
    """The plan of two builds that are compared already: the model's own initialization, and the rules."""
    return _rated(_own(beside, optimizer, None), beside, optimizer)


def _own(beside: Beside, optimizer: str, scheme: str | None) -> Plan:
    """The model's own initialization, taken from its base."""
    assert beside.base is not None
    own = own_inits(beside.model, beside.base, list(beside.dims.values()), scheme)
    sizes, rows = beside.sizes(), []
    for name, item in beside.dims.items():
        traced = beside.pair.parameter(name)
        init = own[name].init(sizes[name].weight, replaces_depth=beside.rules.depth != "none")
        if traced is None:
            rows.append(ParameterPlan(name, item.shape, init, why=item.role, role=item.role))
        else:
            kept = KEEP if traced.frozen else init
            rows.append(ParameterPlan(name, item.shape, kept, why=item.role, role=traced.role))
    known = "traced" if beside.pair.known else f"by shapes: {beside.pair.reason}"
    return Plan(rows, meta={"recipe": "own", "structure": known, "optimizer": optimizer})


def _by_recipe(beside: Beside, recipe: str, options: dict[str, Any]) -> Plan:
    """The recipe's rows at this width, junctions not folded yet."""
    scheme, structure, rule = RECIPES[recipe], beside.pair.required, beside.rules.width
    made = scheme(structure, **options)
    if rule is None:
        return made
    if beside.base is None:
        return scaled_from_reference(made, scheme, structure, beside.dims, rule.readout, options)
    if beside.pair.base is None:
        raise UnsupportedError(f"the base cannot be traced, which {recipe} needs: {beside.pair.reason}")
    weights = {name: rule.factors(item).weight for name, item in beside.dims.items()}
    return scaled_from_base(made, scheme, beside.pair.base, weights, options)


def _rated(made: Plan, beside: Beside, optimizer: str, recipe: str = "own") -> Plan:
    """The plan with the rules' multipliers, the exact moves that its rows do not carry yet, and a tied readout."""
    own, scaled, asked = recipe == "own" and beside.base is not None, bool(made.junctions), beside.sizes()
    structure, rule = beside.structure, beside.rules.width
    rows = []
    for row in made.parameters:
        place, item = beside.dims.get(row.name), beside.pair.parameter(row.name)
        if place is None or (item is not None and item.frozen):
            rows.append(row)
            continue
        deep = beside.deep(row.name)
        if not own:
            moved = beside.scores.gauges.get(row.name, 1.0) * (1.0 if scaled else deep.weight)
            row = replace(row, init=times(row.init, moved), why=f"{recipe}: {row.why}")
        sizes = asked[row.name].gauged(1.0 / deep.weight if scaled else 1.0)
        matrix, alpha = (None, 1.0) if rule is None else (place.matrix, rule.alpha_hidden)
        row = multiplied(row, sizes, optimizer, matrix, alpha)
        row = replace(row, why=_why(row.why, place, beside))
        row = _with_shifted_end(row, beside, scaled, optimizer)
        if beside.base is None and rule is not None and structure is not None:
            row = with_table_scale(row, structure, optimizer)
            as_readout = bool(made.meta.get("tied_as_readout"))
            row = with_shaping_rate(row, structure, optimizer, beside.rules.reference_width, as_readout)
        rows.append(row)
    meta = {**made.meta, "depth": beside.rules.depth, "optimizer": optimizer, "roles": _count_roles(beside.dims)}
    if beside.base is None and rule is not None:
        meta["reference_width"] = beside.rules.reference_width
    made = Plan(rows, made.junctions, made.scales + beside.scores.scales, meta)
    return made if rule is None else with_tied_factor(made, beside, optimizer)


def _why(told: str, item: Dimensions, beside: Beside) -> str:
    rule, parts = beside.rules.width, []
    if rule is not None:
        gauge, table = beside.scores.gauges.get(item.name, 1.0), beside.pair.table_scale(item.name)
        told_gauge = "the model's own multiplier, weight" if item.role == "readout" else "attention 1/d as"
        parts += [f"fan-in x{item.fan_in:.4g}"] * (item.fan_in != 1.0)
        parts += [f"fan-out x{item.fan_out:.4g}"] * (beside.base is not None and item.fan_out != 1.0)
        parts += [f"{told_gauge} x{gauge:.3g}"] * (gauge != 1.0)
        parts += [f"the model multiplies its rows by x{table:.3g}"] * (table != 1.0)
        told += f"; {rule.name}: {', '.join(parts)}" if parts else ""
    return f"{told}; {beside.rules.depth}: layers x{item.depth:.4g}" if item.name in beside.depths else told


def _with_shifted_end(row: ParameterPlan, beside: Beside, scaled: bool, optimizer: str) -> ParameterPlan:
    """Gains that end a branch as `1 + w` carry the branch scale in what they are, not in a factor of `w`."""
    shift, branch = beside.pair.ends().get(row.name, 0.0), beside.deep(row.name).branch
    if not shift or scaled or branch == 1.0 or beside.structure is None:
        return row
    value = beside.structure.parameters[row.name].constant
    init = row.init if value is None else Init("constant", value=value)
    return with_factor(replace(row, init=init), branch, optimizer, shift)


def _count_roles(dims: Mapping[str, Dimensions]) -> dict[str, int]:
    roles = [item.role for item in dims.values()]
    return {role: roles.count(role) for role in dict.fromkeys(roles)}


def _with_branch_exponent(recipe: str, depth: str, options: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose branches follow `b^2 = k / N^alpha` takes the exponent of the depth rule."""
    if depth != "linear" or recipe not in ("unit", "depth_scaling") or "alpha" in options:
        return options
    k = options.get("k", RECIPES[recipe].default("k"))
    return {**options, "alpha": 2.0, "k": k * REFERENCE_LAYERS}


def _with_zeros(plan: Plan, structure: Structure, zeros: Sequence[str]) -> Plan:
    """The plan with some parameters at zero; rates stay what they are.

    A readout at zero starts at a loss of ln(classes), queries at zero at even attention (Yang et al. 2022, D.2), branch
    ends at the identity. A tied readout is the embedding and stays, as do queries inside a fused matrix.
    """
    names: set[str] = set()
    for choice in zeros:
        if choice not in ZEROS:
            raise UnknownNameError("zeros", choice, ZEROS)
        found = _may_be_zero(structure, choice)
        if not found:
            raise UnsupportedError(f"zeros={choice!r}: this model has no weight that is that alone (tied or fused)")
        names |= found
    return with_inits(plan, dict.fromkeys(names, Init("constant", value=0.0)), "; starts at zero")


def _may_be_zero(structure: Structure, choice: str) -> set[str]:
    if choice == "readout":
        return {item.name for item in structure if item.role == "readout"}
    if choice == "query":
        found = [scores.query for scores in structure.scores if scores.shift == 0.0]
        return {
            name for names in found if not any(structure.parameters[name].parts for name in names) for name in names
        }
    return {name for junction in structure.junctions if junction.shift == 0.0 for name in junction.weights}
