"""A model's weights with the digest of the plan they were made by, in the metadata of a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from sigprop.errors import InputError
from sigprop.results.application import attach_plan, unwrap

if TYPE_CHECKING:
    from sigprop.results.plan import Plan

KEY = "sigprop_plan"


def save_weights(plan: Plan, model: nn.Module, path: str | Path) -> None:
    save_model(unwrap(model), str(path), metadata={KEY: plan.digest, "format": "pt"})


def load_weights(plan: Plan, model: nn.Module, path: str | Path) -> nn.Module:
    """Load the file into the model and attach the plan; a file of another plan is refused before anything changes."""
    with safe_open(str(path), framework="pt") as file:
        found = (file.metadata() or {}).get(KEY)
    if found != plan.digest:
        told = f"was saved with plan {found}" if found else "carries no plan"
        raise InputError(f"{path} {told}, this is plan {plan.digest}: load it with the plan it was saved with")
    load_model(unwrap(model), str(path))
    return attach_plan(plan, model)
