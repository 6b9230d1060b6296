r"""`plan`: any registered recipe, for any model, as a `Plan`, and what follows a recipe.

Junctions are scaled by hooks (`plans/hooks.py`), or folded: `skip * x + branch * f(x)` in an unmodified model, the same
training step for step (docs/do/recipes.md#scaling-without-surgery). Let `level` be the product of the skip scales since
the last norm of the stream; dividing the stream by it turns every sum into `y + (branch / level) f`, and norms undo it:

    Post-LN   norm(l x + b f) = norm(x + (b/l) f)                     factor b / l
    Pre-LN    x_k = l^k y_k, a final norm undoes the last level       factor b / l^k at the k-th sum

`f` is linear in its last weight and bias, which take the factor s; a gain that enters as `c + w` as
`c + w' = s (c + w)`. Norms see their input divided by the level, which equals an epsilon multiplied by `1 / level^2`
(`match_epsilon`). The optimizer's settings that keep the trajectory stand in `multipliers.py`.

A table that is initialized for the start of the stream with std `s` and is also the readout would give logits of std `s
sqrt(width)` from a normalized stream. Where that is above one, the factor `1 / (s sqrt(width))` goes into what the
readout reads. Frozen weights are the user's: a plan that would initialize or scale one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sigprop.errors import UnsupportedError
from sigprop.isolation import seed_all, undisturbed
from sigprop.plans.hooks import LEARNED
from sigprop.plans.multipliers import Sizes
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.rows import RECIPES, multiplied, scale_row, times
from sigprop.plans.rows import JunctionPlan, ParameterPlan, ScalePlan
from sigprop.results.parameters import KEEP
from sigprop.structure import Structure, structure_of


def plan(
    model: nn.Module,
    recipe: str,
    *,
    batch: Any = None,
    optimizer: str = "adamw",
    surgery: bool = False,
    learnable: bool = False,
    match_epsilon: bool = False,
    structure: Structure | None = None,
    **options: Any,
) -> Plan:
    """A prescription for every parameter of the model by a named recipe.

    `batch`: an example of the model's input; random when it is not given. `optimizer`: whose settings the plan
    multiplies where scales are folded into weights. `surgery=True` scales the residual junctions by hooks instead;
    `learnable` then makes every branch's scale a parameter that starts there. `match_epsilon` sets the norms' epsilon
    so that folding is exact to the last digit. `structure` saves a trace where one was made before. `options` are the
    recipe's own.
    """
    with reproducibly():
        structure = structure_of(model, batch) if structure is None else structure
        made = RECIPES[recipe](structure, **options)
        return completed(made, structure, optimizer, surgery, learnable, match_epsilon)


@contextmanager
def reproducibly() -> Iterator[None]:
    """Random numbers of a model (dropout) are the same every time, and nobody else's."""
    with undisturbed() as interrupts, interrupts.let_through():
        seed_all(0)
        yield


def completed(
    made: Plan,
    structure: Structure,
    optimizer: str,
    surgery: bool = False,
    learnable: bool = False,
    match_epsilon: bool = False,
) -> Plan:
    """A recipe's plan with its junctions folded or hooked, and the factor of a tied readout."""
    made = with_learned_scales(made, surgery) if learnable else made
    if not made.junctions:
        made = replace(made, meta={**made.meta, "optimizer": optimizer})
    elif surgery:
        made = check_surgery(with_levels(made, structure))
    else:
        made = fold(made, structure, optimizer, match_epsilon)
    made = require_untouched(with_tied_readout(made, structure, optimizer), structure)
    if structure.model is not None:
        made.check(structure.model)
    return made


def require_untouched(plan: Plan, structure: Structure) -> Plan:
    """The plan, if it leaves every frozen parameter as it is."""
    frozen = {item.name for item in structure if item.frozen}
    touched = [row.name for row in plan.parameters if row.name in frozen and row.init != KEEP]
    if not touched:
        return plan
    others = f" and {len(touched) - 1} more" if len(touched) > 1 else ""
    raise UnsupportedError(
        f"{plan.meta.get('recipe')} would initialize or scale {touched[0]}{others}, which is frozen. Plan the model "
        'before its weights are loaded and frozen, or take the recipe "own", which initializes nothing and gives what '
        'is trained (adapters) its rates: sp.plan(model, "own", width="mup")'
    )


def with_tied_readout(plan: Plan, structure: Structure, optimizer: str) -> Plan:
    """The plan with the factor in the rows of the final norm; `meta["tied_factor"]` holds it where there is one."""
    tied = structure.tied_table
    row = None if tied is None else next(row for row in plan.parameters if row.name == tied.name)
    if row is None or row.init.std == 0.0 or not structure.readout_input:
        return plan
    factor = min(1.0, 1.0 / (row.init.std * math.sqrt(structure.width)))
    if factor == 1.0:
        return plan
    rows = [
        replace(found, why=f"{found.why} (tied readout)") if found is not item else item
        for item in plan.parameters
        for found in [with_factor(item, factor, optimizer) if item.name in structure.readout_input else item]
    ]
    return replace(plan, parameters=rows, meta={**plan.meta, "tied_factor": factor})


def with_learned_scales(plan: Plan, surgery: bool) -> Plan:
    """The plan with the scale of every branch as a parameter."""
    if not surgery or not plan.junctions:
        what = "surgery=True" if plan.junctions else "a recipe that scales junctions"
        raise UnsupportedError(f"{plan.meta.get('recipe')}: learnable scales are new parameters and need {what}")
    rows = [replace(row, learnable=True) for row in plan.junctions]
    known = {row.name for row in plan.parameters}
    added = [scale_row(row) for row in rows if f"{row.name}.{LEARNED}" not in known]
    return replace(plan, parameters=plan.parameters + added, junctions=rows)


def check_surgery(plan: Plan) -> Plan:
    """The plan itself, if every junction that needs scales has modules to hook."""
    for row in plan.junctions:
        if row.branch == 1.0 and row.skip == 1.0 and not row.learnable:
            continue
        if not row.name:
            raise UnsupportedError("a residual branch has no module of its own: nothing to hook")
        if row.skip != 1.0 and not row.entry:
            raise UnsupportedError(f"{row.name}: no module takes the residual stream in here: nothing to hook")
    return plan


EPSILONS = ("eps", "variance_epsilon", "epsilon")


def with_levels(plan: Plan, structure: Structure) -> Plan:
    """The plan with the level of every junction; 0 where a level is not undone by norms."""
    if any(row.place == "input" for row in plan.junctions):
        return plan
    levels: list[float] = []
    for junction, row in zip(structure.junctions, plan.junctions, strict=True):
        before = 1.0 if junction.previous is None else levels[junction.previous]
        levels.append(before * row.skip)
    undone = _undone(structure, levels)
    rows = [
        replace(row, level=level if undone[place] or math.isclose(level, 1.0) else 0.0)
        for place, (row, level) in enumerate(zip(plan.junctions, levels, strict=True))
    ]
    return replace(plan, junctions=rows)


def _undone(structure: Structure, levels: list[float]) -> list[bool]:
    """For each junction, whether its sum and all later ones that carry its level are read through norms only."""
    found = [junction.scale_free for junction in structure.junctions]
    for place in reversed(range(len(found))):
        before = structure.junctions[place].previous
        if before is not None and not found[place]:
            found[before] = False
    return found


def fold_factors(plan: Plan) -> dict[str, float]:
    """What the last parameters of every branch are multiplied by, from a plan with its levels."""
    if any(row.learnable for row in plan.junctions):
        raise UnsupportedError(
            f"{plan.meta.get('recipe')} learns its scales, which needs new parameters: pass surgery=True"
        )
    factors: dict[str, float] = {}
    for row in plan.junctions:
        factor = _factor(row)
        for name in row.weights if factor != 1.0 else ():
            if not math.isclose(factors.setdefault(name, factor), factor):
                raise UnsupportedError(f"{name} ends several branches that need different scales; pass surgery=True")
    return factors


def fold(plan: Plan, structure: Structure, optimizer: str = "adamw", match_epsilon: bool = False) -> Plan:
    """The plan with every junction's scales in the rows of the branch's last parameters."""
    plan = with_levels(plan, structure)
    factors = fold_factors(plan)
    shifts = {name: row.shift for row in plan.junctions for name in row.weights}
    rows = [
        with_factor(row, factors.get(row.name, 1.0), optimizer, shifts.get(row.name, 0.0)) for row in plan.parameters
    ]
    junctions = [replace(row, folded=True) for row in plan.junctions]
    scales = plan.scales + (_epsilons(plan, structure) if match_epsilon else [])
    meta = {**plan.meta, "optimizer": optimizer}
    return Plan(rows, junctions, scales, meta)


def _factor(row: JunctionPlan) -> float:
    if row.level == 0.0:
        raise UnsupportedError(
            f"{row.name}: a skip scale cannot be folded here, because something other than a norm reads the stream "
            "(no final norm, or no norm at all); pass surgery=True to scale the junctions themselves"
        )
    factor = row.branch / row.level
    if factor != 1.0 and not row.weights:
        raise UnsupportedError(f"{row.name}: its branch does not end in a weight; pass surgery=True")
    if factor == 0.0:
        raise UnsupportedError(f"{row.name}: a branch scale of 0 leaves nothing to train folded; pass surgery=True")
    return factor


def with_factor(row: ParameterPlan, factor: float, optimizer: str, shift: float = 0.0) -> ParameterPlan:
    """The row of a parameter that carries a factor, with the settings that keep its trajectory."""
    if factor == 1.0:
        return row
    if shift and optimizer == "adafactor":
        raise UnsupportedError(f"{row.name} enters as {shift:g} + w, whose size Adafactor misreads; pass surgery=True")
    row = multiplied(row, Sizes().gauged(factor), optimizer)
    return replace(
        row,
        init=times(row.init, factor, shift),
        weight_decay=0.0 if shift else row.weight_decay,
        why=f"{row.why}, carries x{factor:.4g}" + (", not decayed" if shift else ""),
    )


def _epsilons(plan: Plan, structure: Structure) -> list[ScalePlan]:
    """Epsilon of every norm that reads the stream, divided by the square of the level there; a norm that writes it out
    in its forward, as OLMo's, has its input multiplied by the level, which is the same."""
    modules = {} if structure.model is None else dict(structure.model.named_modules())
    found: dict[str, ScalePlan] = {}
    for junction, row in zip(structure.junctions, plan.junctions, strict=True):
        for name in junction.readers:
            module = modules.get(name)
            attribute = next((key for key in EPSILONS if isinstance(getattr(module, key, None), float)), None)
            if attribute is None and (module is None or not _is_bare_norm(module, structure.width)):
                raise UnsupportedError(f"{name}: no epsilon found to match; leave match_epsilon off")
            if not math.isclose(row.level, 1.0):
                why = "norm epsilon with the same effect on the unscaled stream"
                factor, place = (row.level, "input") if attribute is None else (row.level**-2, f"attribute:{attribute}")
                found[name] = ScalePlan(name, factor, place, why)
    return list(found.values())


def _is_bare_norm(module: nn.Module, width: int) -> bool:
    """Whether a module is nothing but a norm: no parameter or part of its own, and blind to the size of its input."""
    if next(module.children(), None) is not None or next(module.parameters(), None) is not None:
        return False
    x = 1e4 * torch.randn(2, 3, width, generator=torch.Generator().manual_seed(0))
    try:
        return torch.allclose(module(x), module(4.0 * x), rtol=1e-3, atol=1e-4)
    except (RuntimeError, TypeError, ValueError):
        return False
