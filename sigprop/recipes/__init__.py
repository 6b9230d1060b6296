"""Recipes: initializations and residual scalings of the literature as plans for any model.

| file | what it does |
|---|---|
| `schemes/` | one scheme each |
| `registry`, `rows` | how a scheme is registered, and the building blocks it is written with |
| `fold`, `surgery` | scales carried by unmodified models, exactly; or hooked onto the junctions |
| `walk` | predicted states under other draws, which the solvers stand on |
| `predicted_plan` | what a recipe would do to a model, predicted |
| `planning` | `plan(model, recipe)` |
"""

from sigprop.recipes.fold import multipliers
from sigprop.recipes.planning import plan
from sigprop.recipes.registry import Recipe, get_recipe, recipe, recipes
from sigprop.structure import Junction, Parameter, Structure, read_structure

__all__ = [
    "Junction",
    "Parameter",
    "Recipe",
    "Structure",
    "get_recipe",
    "multipliers",
    "plan",
    "read_structure",
    "recipe",
    "recipes",
]
