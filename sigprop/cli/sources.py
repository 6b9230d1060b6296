"""A MODEL on the command line as one model to run: how to build it, a batch, and a loss.

A reference network's name with settings, a Hugging Face `config.json`, or `file.py:factory`; the file also defines
`batch()` and may define `loss(output, batch)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.cli.families import read_family
from sigprop.errors import UnknownNameError, require
from sigprop.models import CONFIGS, REFERENCE, build, load_text, sample_text, text_batch
from sigprop.trace.loading import class_of, read_config


@dataclass(frozen=True)
class Source:
    """`build()` makes the model; `loss_fn` is None where the model returns its loss, or noise will do."""

    build: Callable[[], nn.Module]
    batch: Any
    loss_fn: Callable[..., Tensor] | None = None


def read_source(
    model: str, settings: dict[str, Any], text: Path | None = None, batch: int = 4, tokens: int = 128
) -> Source:
    """What a MODEL argument names."""
    require(batch > 0, "batch", batch, "at least 1")
    require(tokens > 1, "tokens", tokens, "at least 2")
    words = sample_text() if text is None else load_text(text)
    if model in REFERENCE:
        return _reference(model, settings, words, batch, tokens)
    if model.endswith(".json"):
        return _hugging_face(Path(model), settings, words, batch, tokens)
    if ".py:" in model:
        family = read_family(model, settings)
        return Source(family.build, family.batch, family.loss_fn)
    raise UnknownNameError("model", model, REFERENCE, "Or give a config.json, or file.py:factory.")


def _reference(name: str, settings: dict[str, Any], words: str, batch: int, tokens: int) -> Source:
    build(name, **settings)
    config: Any = CONFIGS[name](**settings)
    make = lambda: build(name, **settings)  # noqa: E731
    if name == "transformer":
        ids = text_batch(words, batch, min(tokens, config.context), config.vocabulary)
        if config.kind == "encoder_decoder":
            return Source(make, (ids, ids))
        return Source(make, ids, _next_token if config.kind == "decoder" else None)
    generator = torch.Generator().manual_seed(0)
    if name == "mlp":
        return Source(make, torch.randn(batch, config.inputs, generator=generator))
    side = getattr(config, "image", 32)
    return Source(make, torch.randn(batch, config.channels, side, side, generator=generator))


def _next_token(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _hugging_face(path: Path, settings: dict[str, Any], words: str, batch: int, tokens: int) -> Source:
    config = read_config(path)
    for key, value in settings.items():
        if not hasattr(config, key):
            raise UnknownNameError(f"setting of {type(config).__name__}", key, config.to_dict())
        setattr(config, key, value)
    make = class_of(config)._from_config
    if hasattr(config, "vocab_size"):
        ids = text_batch(words, batch, tokens, min(256, config.vocab_size))
        return Source(lambda: make(config), {"input_ids": ids, "labels": ids})
    generator = torch.Generator().manual_seed(0)
    shape = (batch, config.num_channels, config.image_size, config.image_size)
    return Source(lambda: make(config), {"pixel_values": torch.randn(shape, generator=generator)})
