"""Recipes: initializations and residual scalings of the literature as plans for any model.

| file | what it does |
|---|---|
| `anatomy`, `dissection`, `endings`, `roles` | what a recipe sees of a model: parameters by role, junctions |
| `registry`, `rows` | how a scheme is registered, and the building blocks it is written with |
| `fold`, `surgery` | scales carried by unmodified models, exactly; or hooked onto the junctions |
| `walk`, `unit` | predicted states under other draws, and the solver that stands on them |
| `planning` | `plan(model, recipe)` |
| the others | one scheme each |
"""

from sigprop.recipes.anatomy import Anatomy, Junction, Parameter, examine
from sigprop.recipes.fold import multipliers
from sigprop.recipes.planning import plan
from sigprop.recipes.registry import Recipe, get_recipe, recipe, recipes

__all__ = [
    "Anatomy",
    "Junction",
    "Parameter",
    "Recipe",
    "examine",
    "get_recipe",
    "multipliers",
    "plan",
    "recipe",
    "recipes",
]
