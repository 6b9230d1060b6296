"""Recipes by name. One file, one registration, one test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import Any

from sigprop.errors import InputError, UnknownNameError
from sigprop.plans.plan import Plan

Function = Callable[..., Plan]
_RECIPES: dict[str, Recipe] = {}


@dataclass(frozen=True)
class Recipe:
    """A pure function from a model's structure (and options) to a plan whose junctions are not folded yet.

    `data` marks the ones that run the model on a batch and need its parameters to be real, `solves` those whose
    matrices go like `fan_in^{-1/2}` because they solve for predicted states, or by assumption (`own`).
    """

    name: str
    function: Function
    paper: str
    applies_to: str
    effect: str
    data: bool = False
    solves: bool = False

    def default(self, option: str) -> Any:
        """The default of one of the recipe's options."""
        return signature(self.function).parameters[option].default

    def __call__(self, structure: Any, **options: Any) -> Plan:
        try:
            plan = self.function(structure, **options)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise InputError(f"recipe {self.name!r}: {str(error).partition(') ')[2] or error}") from error
        plan.meta = {"recipe": self.name, "paper": self.paper, **plan.meta}
        return plan


def recipe(
    name: str, *, paper: str, applies_to: str, effect: str, data: bool = False, solves: bool = False
) -> Callable[[Function], Function]:
    """Decorator: register a scheme under a name."""

    def add(function: Function) -> Function:
        if name in _RECIPES:
            raise InputError(f"recipe {name!r} is already registered by {_RECIPES[name].function.__module__}")
        _RECIPES[name] = Recipe(name, function, paper, applies_to, effect, data, solves)
        return function

    return add


def recipes() -> dict[str, Recipe]:
    """All recipes, in alphabetical order."""
    room = import_module(f"{__package__}.schemes")
    for module in iter_modules(room.__path__):
        import_module(f"{room.__name__}.{module.name}")
    return dict(sorted(_RECIPES.items()))


def get_recipe(name: str) -> Recipe:
    known = recipes()
    if name not in known:
        raise UnknownNameError("recipe", name, known, "`sigprop recipes` lists them all.")
    return known[name]
