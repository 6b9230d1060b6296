"""Where a run broke: the first module, in order of execution, whose output is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sigprop.research.lab.steps import Batch, called


def first_bad_site(model: nn.Module, batch: Batch) -> str:
    """The module's name, or the parameter's that is not finite already; empty if all outputs are finite."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"parameter {name}"
    found: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if not found and isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
            found.append(names[module] or type(model).__name__)

    handles = [module.register_forward_hook(look) for module in names]
    try:
        with torch.no_grad():
            called(model, batch, model)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""
