"""The base of a model: another model, a configuration, a factory, or just a width."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.results.application import unwrap

# Names that Hugging Face configurations use for sizes that grow in proportion to `hidden_size`.
PROPORTIONAL = (
    "intermediate_size",
    "n_inner",
    "d_ff",
    "ffn_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "num_attention_heads",
    "num_key_value_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "num_decoder_heads",
)


def build_base(model: nn.Module, base: Any) -> nn.Module:
    """The base (module, factory, configuration or width) as a module, drawn without touching the global seed."""
    if isinstance(base, nn.Module):
        return base
    with torch.random.fork_rng(devices=[]):
        if isinstance(base, int):
            base = base_config(model, base)
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


def base_config(model: nn.Module, width: int) -> Any:
    """The model's own configuration at another width: head size kept and the number of heads scaled
    (Hugging Face), or the `width` field replaced (dataclass)."""
    config: Any = getattr(unwrap(model), "config", None)
    if hasattr(config, "__dataclass_fields__") and hasattr(config, "width"):
        return dataclasses.replace(config, width=width)
    if not hasattr(config, "to_dict") or not hasattr(config, "hidden_size"):
        raise InputError(f"{type(model).__name__} has no configuration with a width: pass the base model or a factory")
    changed = copy.deepcopy(config)
    present: int = config.hidden_size
    for field in PROPORTIONAL:
        value = getattr(config, field, None)
        if value is None:
            continue
        if value * width % present:
            raise InputError(f"width {width}: {field} = {value} at width {present} does not scale to a whole number")
        setattr(changed, field, value * width // present)
    changed.hidden_size = width
    return changed
