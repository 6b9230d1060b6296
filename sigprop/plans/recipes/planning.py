r"""`plan`: any registered recipe, for any model, as a `Plan`, and what follows a recipe.

Junctions are folded (`folding.py`), or scaled by hooks on the modules that compute a branch and take the stream in
(`plans/hooks.py`); no class is changed and no module replaced.

A table that is initialized for the start of the stream with std `s` and is also the readout would give logits of std `s
sqrt(width)` from a normalized stream. Where that is above one, the factor `1 / (s sqrt(width))` goes into what the
readout reads: gain and bias of the norm before it, exactly. Frozen weights are the user's: a plan that would initialize
or scale one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from sigprop.errors import UnsupportedError
from sigprop.isolation import seed_all, undisturbed
from sigprop.plans.hooks import LEARNED
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.folding import fold, with_factor, with_levels
from sigprop.plans.recipes.registry import RECIPES
from sigprop.plans.recipes.rows import scale_row
from sigprop.results.init import KEEP
from sigprop.structure import Structure, read_structure


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
        structure = read_structure(model, batch) if structure is None else structure
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
    touched = [
        row.name for row in plan.parameters if row.name in frozen and (row.init != KEEP or row.multiplier != 1.0)
    ]
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
