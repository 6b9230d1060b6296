"""`plan`: any registered recipe, for any model, as a `Plan`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from sigprop.isolation import seed_all, undisturbed
from sigprop.plans.recipes.fold import fold, with_levels
from sigprop.plans.recipes.frozen import require_untouched
from sigprop.plans.recipes.registry import get_recipe
from sigprop.plans.recipes.surgery import check_surgery, with_learned_scales
from sigprop.plans.recipes.tied import with_tied_readout
from sigprop.results import Plan
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

    `batch`: an example of the model's input; made up when it is not given. `optimizer`: whose settings the plan
    multiplies where scales are folded into weights. `surgery=True` scales the residual junctions by hooks instead;
    `learnable` then makes every branch's scale a parameter that starts there. `match_epsilon` sets the norms' epsilon
    so that folding is exact to the last digit. `structure` saves a trace where one was made before. `options` are the
    recipe's own.
    """
    with reproducibly():
        structure = read_structure(model, batch) if structure is None else structure
        made = get_recipe(recipe)(structure, **options)
        return completed(made, structure, optimizer, surgery, learnable, match_epsilon)


@contextmanager
def reproducibly() -> Iterator[None]:
    """Random numbers that a model draws (dropout) are the same every time, and nobody else's."""
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
