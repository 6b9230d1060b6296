"""Admin: skip connections as strong as everything added so far, from one profiling pass."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from sigprop.errors import InputError
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import draw_all, with_junctions
from sigprop.plans.recipes.running import outputs_of
from sigprop.plans.recipes.schemes.xavier import xavier_std
from sigprop.results import Init
from sigprop.structure import Junction, Structure


@recipe(
    "admin",
    paper="Liu et al. 2020",
    applies_to="Post-LN Transformers with real parameters",
    effect="norm(w_i x + f(x)), w_i^2 the variance of all earlier branches: each branch's share falls like 1/i",
    data=True,
)
def admin(structure: Structure, data: Any = None, seed: int = 0) -> Plan:
    """`w_i^2 = 1 + sum_{j<i} Var f_j`, the variances measured on a Xavier draw with all `w = 1`; `w` is not learned."""
    structure.require_transformer("admin")
    structure.require_placement("admin", "post")
    if structure.model is None or any(p.is_meta for p in structure.model.parameters()):
        raise InputError("admin profiles real outputs: the model's parameters must not be on the meta device")
    plan = draw_all(structure, lambda item, role, size: Init("normal", std=xavier_std(item, role)))
    twin = copy.deepcopy(structure.model)
    plan.apply_(twin, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        outputs = outputs_of(
            twin, structure.batch if data is None else data, (junction.exit for junction in structure.junctions)
        )
    gathered: dict[int, float] = {}
    skips: dict[str, float] = {}
    for junction in structure.junctions:
        total = gathered.setdefault(junction.stream, 1.0)
        skips[junction.exit] = math.sqrt(total)
        gathered[junction.stream] = total + float(outputs[junction.exit].double().var())

    def scales(junction: Junction) -> tuple[float, float]:
        return skips[junction.exit], 1.0

    return with_junctions(plan, structure, scales, "w x + f(x), w profiled")
