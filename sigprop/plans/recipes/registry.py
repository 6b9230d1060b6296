"""Recipes by name. One file, one registration, one test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from sigprop.errors import InputError
from sigprop.plans.plan import Plan
from sigprop.registry import Registry

Function = Callable[..., Plan]


@dataclass(frozen=True)
class Recipe:
    """A pure function from a model's structure (and options) to a plan whose junctions are not folded yet.

    `data` marks the ones that run the model on a batch and need its parameters to be real, `solves` those whose
    matrices go like `fan_in^{-1/2}` because they solve for predicted states, or by assumption (`own`). `needs`:
    `junctions` or `transformer`; `norms`: the placement that it is for.
    """

    name: str
    function: Function
    paper: str
    applies_to: str
    effect: str
    data: bool = False
    solves: bool = False
    needs: str = ""
    norms: str = ""

    def default(self, option: str) -> Any:
        """The default of one of the recipe's options."""
        return signature(self.function).parameters[option].default

    def __call__(self, structure: Any, **options: Any) -> Plan:
        structure.require(self.name, self.needs, self.norms)
        try:
            plan = self.function(structure, **options)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise InputError(f"recipe {self.name!r}: {str(error).partition(') ')[2] or error}") from error
        plan.meta = {"recipe": self.name, "paper": self.paper, **plan.meta}
        return plan


RECIPES: Registry[Recipe] = Registry("recipe", f"{__package__}.schemes", "`sigprop recipes` lists them all.")


def recipe(name: str, **about: Any) -> Callable[[Function], Function]:
    """Decorator: register a scheme under a name, with the other fields of `Recipe`."""

    def add(function: Function) -> Function:
        RECIPES.add(name, Recipe(name, function, **about))
        return function

    return add
