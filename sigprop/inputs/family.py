"""A MODEL as a family: `build(width)` or `build(width, depth)` with a batch and a loss.

A reference network's name with settings, a Hugging Face `config.json`, or `file.py:factory` with
`factory(width)` or `factory(width, depth)`; the file also defines `batch()` and may define `loss(output, batch)`.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.batches import first_batch
from sigprop.errors import InputError, UnknownNameError
from sigprop.inputs import hugging_face
from sigprop.inputs.batches import Wanted
from sigprop.inputs.source import next_token, open_source
from sigprop.inputs.user_file import is_user_object, read_user_object, user_code
from sigprop.losses import LossChoice
from sigprop.models import REFERENCE, build


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`["depth=48", "dropout=0.1", "kind=decoder"]` to typed values; a bare word is text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key or not text:
            raise InputError(f"--set {pair!r} is not allowed: needs key=value, for example --set depth=48")
        if key in settings:
            raise InputError(f"--set {key} is given twice")
        settings[key] = _value(text)
    return settings


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("nan", "inf", "-inf"):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


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


@dataclass(frozen=True)
class Family:
    """`build(width)` or `build(width, depth)`, and what to train it on."""

    build: Callable[..., nn.Module]
    batch: Any
    loss: LossChoice = None


def open_family(model: str, settings: dict[str, Any] | None = None, batch: int = 4, tokens: int = 64) -> Family:
    """The family that a MODEL argument names."""
    settings = settings or {}
    if model in REFERENCE:
        return _reference(model, settings, batch, tokens)
    if is_user_object(model):
        return _of_file(model, settings)
    if hugging_face.looks_like_one(model):
        return _of_hub(model, settings, Wanted(batch, tokens))
    raise UnknownNameError("model", model, REFERENCE, "Or give a config.json, or file.py:factory.")


def _reference(name: str, settings: dict[str, Any], batch: int, tokens: int) -> Family:
    def make(width: int, depth: int | None = None) -> nn.Module:
        deep = {} if depth is None else {"depth": depth}
        return build(name, **{**settings, "width": width, **deep})

    source = open_source(name, settings, batch=batch * {"transformer": 1, "mlp": 16}.get(name, 4), tokens=tokens)
    if name != "transformer":
        return Family(make, source.batch, _classification)
    return Family(make, source.batch, _next_of_target if settings.get("kind") == "encoder_decoder" else source.loss)


def _next_of_target(logits: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return next_token(logits, batch[1])


def _classification(output: Tensor, inputs: Tensor) -> Tensor:
    """Cross entropy against labels fixed by the place in the batch."""
    labels = torch.arange(output.shape[0], device=output.device) % output.shape[-1]
    return F.cross_entropy(output, labels)


def _of_hub(model: str, settings: dict[str, Any], wanted: Wanted) -> Family:
    opened = hugging_face.open_model(model, settings)

    def make(width: int, depth: int | None = None) -> nn.Module:
        changed = config_of_width(opened.config, width)
        if depth is not None:
            changed.num_hidden_layers = depth
        return hugging_face.from_config(changed)

    return Family(make, opened.batch(None, wanted))


def _of_file(model: str, settings: dict[str, Any]) -> Family:
    factory = read_user_object(model)
    if not callable(factory.value) or isinstance(factory.value, nn.Module):
        raise InputError(f"{model} has one size: needs a class or function of a width")
    if not hasattr(factory.module, "batch"):
        raise InputError(f"{factory.path.name} needs a function batch() that returns what the model is trained on")
    with user_code(factory.path):
        batch = first_batch(factory.module.batch())
    return Family(lambda *shape: factory.call(*shape, **settings), batch, getattr(factory.module, "loss", None))
