"""The few functions that most people need, gathered from the packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from sigprop.blueprints import Blueprint
from sigprop.blueprints import predict as predict_blueprint
from sigprop.capture import build as skeleton
from sigprop.errors import InputError, SigpropError, UnknownNameError
from sigprop.inputs import TOKENS, as_module, made_up_batch
from sigprop.prediction import predict as predict_model
from sigprop.results import Profile
from sigprop.theory.corrections import correcting

if TYPE_CHECKING:
    from sigprop.plans import Plan


def predict(model: Any, batch: Any = None, *, corrections: Iterable[str] | None = None, **options: Any) -> Profile:
    """Moments of every site and of its gradient: from theory, verified on the real model where that is cheap, and
    simulated where theory cannot follow.

    `model` is a blueprint, an nn.Module (left as it was), a function that builds one, a Hugging Face config, or what
    the command line takes: `file.py:Model(width=256)`, a `config.json`, a checkpoint folder, a cached hub id.
    `batch` is a tensor, a tuple (arguments, or inputs and targets), a mapping or a `DataLoader`, as for `measure`;
    random (Zipf-like ids, noise images) when None, and then of `tokens` tokens where the model has room for them. With
    a batch `tokens` is the longest sequence that theory follows. For a blueprint the only option is `top`, the
    gradient at its output; for the others see `sigprop.prediction.predict`.
    `corrections`: which of `sigprop.theory.corrections` theory makes; all of them when None.
    """
    with correcting(corrections):
        return _predict(model, batch, options)


def _predict(model: Any, batch: Any, options: dict[str, Any]) -> Profile:
    if isinstance(model, Blueprint):
        return predict_blueprint(model, **options)
    loaded = as_module(model, skeleton)
    if batch is not None:
        return predict_model(loaded, batch, **options)
    made = made_up_batch(loaded, options.pop("tokens", TOKENS), options.get("seed", 0))
    note = "random: Zipf-like token ids or noise"
    try:
        profile = predict_model(loaded, made, **options)
    except SigpropError:
        if not (isinstance(made, Mapping) and "labels" in made):
            raise
        bare = {key: value for key, value in made.items() if key != "labels"}
        profile = predict_model(loaded, bare, **options)
        note += ", no labels: the model's own loss does not take them"
    profile.meta["batch"] = note
    return profile


def plan(model: nn.Module, recipe: str = "own", *, width: str | None = None, base: Any = None, **options: Any) -> Plan:
    """A prescription for every parameter of a model: a recipe, a width rule, a depth rule and an optimizer in one.

    `sp.plan(model, "unit", width="mup", optimizer="adamw")`. Recipes (`unit`, `deepscale`, `xavier`, ..., `own`: the
    model's own) say how parameters are initialized; width rules (`mup`, `sp`, `neural_tangent`, `meta:s`) and depth
    rules (`sqrt`, `linear`) what their learning rates are multiplied by. A width rule may stand in the recipe's place.
    `base`: the model or width that a learning rate was tuned at; without it rates are those of a layer of 128 inputs.
    Other options: `sigprop.plans.scaling.compose`.
    """
    # imported here: a prediction should not wait for the optimizers and fits of plans
    from sigprop.plans.recipes import RECIPES
    from sigprop.plans.scaling import WIDTH_RULES, compose

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
