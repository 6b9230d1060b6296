"""Schemes that run the model on a batch, or measure its Jacobians."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.errors import InputError, UnsupportedError
from sigprop.measurement.batch import call
from sigprop.measurement.criticality import check_criticality
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.rows import RECIPES, initialized_copy, recipe, scale_rows, with_junctions
from sigprop.plans.recipes.schemes.matrices import orthogonal, xavier
from sigprop.structure import Junction, Structure

SMALL_GAINS = (
    "; with residual sums it falls to 1 only as the gain goes to 0: let the branches shrink with depth instead (unit, "
    "depth_scaling)"
)


@recipe(
    "admin",
    paper="Liu et al. 2020",
    applies_to="Post-LN Transformers with real parameters",
    effect="norm(w_i x + f(x)), w_i^2 the variance of all earlier branches: each branch's share falls like 1/i",
    data=True,
    needs="transformer",
    norms="post",
)
def admin(structure: Structure, data: Any = None, seed: int = 0) -> Plan:
    """`w_i^2 = 1 + sum_{j<i} Var f_j`, the variances measured on a Xavier initialization with all `w = 1`; `w` is not
    learned."""
    plan = xavier(structure)
    twin = initialized_copy(structure, plan, seed)
    variances: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            variances[name] = float((output[0] if isinstance(output, tuple) else output).double().var())

        return hook

    for name in dict.fromkeys(junction.exit for junction in structure.junctions):
        twin.get_submodule(name).register_forward_hook(watch(name))
    with torch.no_grad():
        call(twin, structure.batch if data is None else data)
    gathered: dict[int, float] = {}
    skips: dict[str, float] = {}
    for junction in structure.junctions:
        total = gathered.setdefault(junction.stream, 1.0)
        skips[junction.exit] = math.sqrt(total)
        gathered[junction.stream] = total + variances[junction.exit]

    def scales(junction: Junction) -> tuple[float, float]:
        return skips[junction.exit], 1.0

    return with_junctions(plan, structure, scales, "w x + f(x), w profiled")


@recipe(
    "lsuv",
    paper="Mishkin & Matas 2016",
    applies_to="any model with real parameters and a batch of real data",
    effect="orthogonal, then each layer's output scaled to unit variance on the batch",
    data=True,
)
def lsuv(structure: Structure, data: Any = None, seed: int = 0) -> Plan:
    """One forward pass on `data` (default: the plan's batch); each matrix is divided by its output's std on the way.

    The output is linear in the matrix, so that one correction per layer is exact for the initialization that was
    measured.
    """
    plan = orthogonal(structure)
    twin = initialized_copy(structure, plan, seed)
    names = {id(module): name for name, module in twin.named_modules()}
    factors: dict[str, float] = {}

    def correct(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        name = f"{names[id(module)]}.weight"
        found = structure.parameters.get(name)
        if found is None or not found.is_matrix or name in factors or not isinstance(output, Tensor):
            return None
        spread = math.sqrt(float(output.double().var()))
        if not math.isfinite(spread) or spread <= 0.0:
            raise InputError(f"lsuv: the output of {names[id(module)]} has no finite spread on this batch")
        factors[name] = 1.0 / spread
        return output / spread

    with torch.no_grad():
        for module in twin.modules():
            if not isinstance(module, nn.Embedding) and isinstance(getattr(module, "weight", None), nn.Parameter):
                module.register_forward_hook(correct)
        call(twin, structure.batch if data is None else data)
    return scale_rows(plan, factors, "unit output on the batch")


@recipe(
    "critical",
    paper="apjn: Doshi, He & Gromov 2023",
    applies_to="models with repeated blocks and real parameters",
    effect="block weights times the gain at which the measured chi_J is 1: gradients survive the depth",
    data=True,
)
def critical(structure: Structure, base: str = "lecun", data: Any = None, probes: int = 8, seed: int = 0) -> Plan:
    """The `base` recipe with all matrices of the repeated blocks times `g`, `chi_J(g) = 1` by search."""
    plan = RECIPES[base](structure)
    if plan.junctions:
        raise InputError(f"base = {base!r} is not allowed: needs a recipe that does not scale junctions")
    twin = initialized_copy(structure, plan, seed)
    found = check_criticality(twin, structure.batch if data is None else data, probes=probes, seed=seed)
    if found.gain is None:
        hint = "" if not structure.junctions or "above" not in found.notes[-1] else SMALL_GAINS
        raise UnsupportedError(f"critical: {found.notes[-1]}{hint}")
    # the lists that the blocks are numbered in, so that the first block is included
    stacks = tuple({row["name"].rpartition(".")[0] + "." for row in found.blocks})
    inside = [item.name for item in structure if item.is_matrix and item.name.startswith(stacks)]
    plan = scale_rows(plan, dict.fromkeys(inside, found.gain), f"x{found.gain:.4g} for chi_J = 1")
    plan.meta = {"base": base, "gain": found.gain, "chi_before": found.factor}
    return plan
