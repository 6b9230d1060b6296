"""A configuration at another width."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from sigprop.errors import InputError

# Names that Hugging Face configurations use for sizes that grow in proportion to `hidden_size`.
PROPORTIONAL = (
    "intermediate_size",
    "n_inner",
    "d_ff",
    "ffn_dim",
    "ffn_hidden_size",
    "hidden_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "num_attention_heads",
    "num_key_value_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "num_decoder_heads",
)


def config_of_width(config: Any, width: int) -> Any:
    """Head size kept and the number of heads scaled (Hugging Face), or the `width` field replaced (dataclass)."""
    if hasattr(config, "__dataclass_fields__") and hasattr(config, "width"):
        return dataclasses.replace(config, width=width)
    if not hasattr(config, "to_dict") or not hasattr(config, "hidden_size"):
        raise InputError(f"{type(config).__name__} is no configuration with a width: pass the base model or a factory")
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
