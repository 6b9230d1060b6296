"""The few functions that most people need, gathered from the rooms."""

from __future__ import annotations

from typing import Any

from torch import nn

from sigprop.blueprints import Blueprint
from sigprop.blueprints import predict as predict_blueprint
from sigprop.errors import UnknownNameError
from sigprop.recipes import plan as plan_recipe
from sigprop.recipes import recipes
from sigprop.results import Plan, Profile
from sigprop.scaling import WIDTH_RULES, parametrize
from sigprop.trace import predict as predict_model


def predict(model: Any, batch: Any = None, **options: Any) -> Profile:
    """Moments of every site and of its gradient, from theory.

    `model` is a blueprint, an nn.Module (left as it was), a Hugging Face config, the path of a `config.json`, or
    `file.py:factory`. For a blueprint the only option is `top`, the gradient at its output; for the others see
    `sigprop.trace.predict`.
    """
    if isinstance(model, Blueprint):
        return predict_blueprint(model, **options)
    return predict_model(model, batch, **options)


def plan(model: nn.Module, recipe: str, **options: Any) -> Plan:
    """A prescription for every parameter of a model, by a recipe or by a parametrization.

    Recipes (`deepscale`, `unit`, `xavier`, ...) take the options of `sigprop.recipes.plan`; parametrizations (`mup`,
    `neural_tangent`, `sp`, `meta:s`) those of `sigprop.scaling.parametrize`, above all `base`.
    """
    name = recipe.lower()
    if name in WIDTH_RULES or name.startswith("meta:"):
        return parametrize(model, name, **options)
    if name not in recipes():
        raise UnknownNameError("recipe", recipe, [*recipes(), *WIDTH_RULES])
    return plan_recipe(model, name, **options)
