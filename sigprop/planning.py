"""`plan`: one door to all prescriptions, recipes and parametrizations alike."""

from __future__ import annotations

from typing import Any

from torch import nn

from sigprop.errors import UnknownNameError
from sigprop.recipes import plan as plan_recipe
from sigprop.recipes import recipes
from sigprop.results import Plan
from sigprop.scaling import WIDTH_RULES, parametrize


def plan(model: nn.Module, recipe: str, **options: Any) -> Plan:
    """A prescription for every parameter of the model, by name.

    A recipe (`sigprop.recipes.plan` has its options: batch, optimizer, surgery, ...) draws the model anew and scales
    its residual junctions. A parametrization (`mup`, `neural_tangent`, `sp`, `meta:s`; options of
    `sigprop.scaling.parametrize`, `base` first) carries a base model's settings to another width or depth.
    """
    name = recipe.lower()
    if name in WIDTH_RULES or name.startswith("meta:"):
        return parametrize(model, name, **options)
    if name not in recipes():
        raise UnknownNameError("recipe", recipe, [*recipes(), *WIDTH_RULES], "`sigprop recipes` lists them all.")
    return plan_recipe(model, name, **options)
