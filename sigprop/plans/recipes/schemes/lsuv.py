"""LSUV: orthogonal weights rescaled on real data until every layer's output has unit variance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import as_batch, run
from sigprop.errors import InputError
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import initialized_copy, scale_rows
from sigprop.plans.recipes.schemes.orthogonal import orthogonal
from sigprop.structure import Structure


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
        run(twin, structure.batch if data is None else as_batch(data, twin))
    return scale_rows(plan, factors, "unit output on the batch")
