"""Recipes: initializations and residual scalings of the literature as plans for any model.

| file | what it does |
|---|---|
| `schemes/` | the schemes, by what they share |
| `rows` | how a scheme is registered, and the building blocks it is written with |
| `planned_states` | what a model becomes under a plan, predicted; the solvers stand on it |
| `planning` | `plan(model, recipe)`; junctions folded exactly or hooked, tied readouts, frozen weights |
"""

from sigprop.plans.recipes.planning import plan
from sigprop.plans.recipes.rows import RECIPES

__all__ = [
    "RECIPES",
    "plan",
]
