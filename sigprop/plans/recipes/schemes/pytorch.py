"""PyTorch's own defaults, whatever the model's author chose."""

from __future__ import annotations

import math

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all, with_inits
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "pytorch",
    paper="torch.nn.Linear.reset_parameters",
    applies_to="any model",
    effect="uniform with variance 1/(3 fan_in); biases likewise; embeddings N(0, 1)",
)
def pytorch(structure: Structure) -> Plan:
    """`W, b ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in))`, embeddings `N(0, 1)`."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        return Init("uniform", std=1.0 / math.sqrt(3.0 * item.fan_in))

    plan = init_all(structure, rule, embedding=1.0)
    weights = {item.name.rpartition(".")[0]: item for item in structure if item.is_matrix}
    owners = {row.name: weights.get(row.name.rpartition(".")[0]) for row in plan if row.role == "bias"}
    return with_inits(plan, {name: rule(owner, "bias", 0) for name, owner in owners.items() if owner is not None})
