"""Plans: initializations, residual scalings and learning rates as data, made by recipes, width and depth rules.

| file | what it does |
|---|---|
| `plan`, `rows` | `Plan`: one row per parameter, junction and scale |
| `application`, `hooks`, `writing` | a plan put on a model, or nothing of it; kept with its weights |
| `exponents` | powers of the width: parametrizations, alignments, the largest stable rates |
| `multipliers` | the one table: what lr, decay and epsilon are multiplied by, for every optimizer |
| `optimizers`, `own_scale`, `matrix_optimizers`, `suggestion` | parameter groups, optimizers, a rate to start with |
| `recipes/` | initializations of the literature, in `schemes/` |
| `scaling/` | width and depth rules, and the coordinate check |
"""

from sigprop.plans.plan import Plan
from sigprop.plans.rows import ParameterPlan

__all__ = ["ParameterPlan", "Plan"]
