"""Admin: skip connections as strong as everything added so far, from one profiling pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import run
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import initialized_copy, with_junctions
from sigprop.plans.recipes.schemes.xavier import xavier
from sigprop.structure import Junction, Structure


def outputs_of(model: nn.Module, batch: Any, names: Iterable[str]) -> dict[str, Tensor]:
    """The (first) output of each named module in one run."""
    found: dict[str, Tensor] = {}
    handles = []

    def watch(name: str):
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            found[name] = output[0] if isinstance(output, tuple) else output

        return hook

    try:
        for name in dict.fromkeys(names):
            handles.append(model.get_submodule(name).register_forward_hook(watch(name)))
        run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return found


@recipe(
    "admin",
    paper="Liu et al. 2020",
    applies_to="Post-LN Transformers with real parameters",
    effect="norm(w_i x + f(x)), w_i^2 the variance of all earlier branches: each branch's share falls like 1/i",
    data=True,
)
def admin(structure: Structure, data: Any = None, seed: int = 0) -> Plan:
    """`w_i^2 = 1 + sum_{j<i} Var f_j`, the variances measured on a Xavier initialization with all `w = 1`; `w` is not
    learned."""
    structure.require_transformer("admin")
    structure.require_placement("admin", "post")
    plan = xavier(structure)
    twin = initialized_copy(structure, plan, seed)
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
