"""The base of a model: another model, a configuration, a factory, or just a width."""

from __future__ import annotations

from typing import Any

from torch import nn

from sigprop.errors import InputError
from sigprop.inputs.widths import config_of_width
from sigprop.isolation import undisturbed
from sigprop.sites import unwrap


def build_base(model: nn.Module, base: Any) -> nn.Module:
    """The base (module, factory, configuration or width) as a module, drawn without touching the global seed."""
    if isinstance(base, nn.Module):
        return base
    with undisturbed() as interrupts, interrupts.let_through():
        if isinstance(base, int):
            base = config_of_width(getattr(unwrap(model), "config", None), base)
        if callable(base) and not hasattr(base, "to_dict"):
            built: Any = base()
            return built
        kind = type(unwrap(model))
        try:
            return kind(base)
        except TypeError as error:
            raise InputError(
                f"{kind.__name__} cannot be built from {type(base).__name__}: pass the base model"
            ) from error
