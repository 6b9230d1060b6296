"""A MODEL on the command line as a family of models: `build(width, depth)` with a batch and a loss.

A reference network's name with settings, a Hugging Face `config.json`, or `file.py:factory` with
`factory(width)` or `factory(width, depth)`; the file may also define `batch()` and `loss(output, batch)`.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.errors import InputError, UnknownNameError
from sigprop.models import REFERENCE, build, sample_text, text_batch
from sigprop.scaling.builds import base_config


@dataclass(frozen=True)
class Family:
    """`build(width)` or `build(width, depth)`, and what to train it on."""

    build: Callable[..., nn.Module]
    batch: Any
    loss_fn: Callable[[Any, Any], Tensor] | None = None


def read_family(model: str, settings: dict[str, Any], batch: int = 4, tokens: int = 64) -> Family:
    """The family that a MODEL argument names."""
    if model in REFERENCE:
        return _reference(model, settings, batch, tokens)
    if model.endswith(".json"):
        return _hugging_face(Path(model), settings, batch, tokens)
    path, separator, name = model.rpartition(":")
    if separator and path.endswith(".py"):
        return _file(Path(path), name, settings)
    raise UnknownNameError("model", model, REFERENCE, "Or give a config.json, or file.py:factory.")


def _reference(name: str, settings: dict[str, Any], batch: int, tokens: int) -> Family:
    def make(width: int, depth: int | None = None) -> nn.Module:
        deep = {} if depth is None else {"depth": depth}
        return build(name, **{**settings, "width": width, **deep})

    generator = torch.Generator().manual_seed(0)
    if name == "transformer":
        vocabulary = settings.get("vocabulary", 256)
        return Family(make, text_batch(sample_text(), batch, min(tokens, settings.get("context", 256)), vocabulary))
    if name == "mlp":
        inputs = torch.randn(batch * 16, settings.get("inputs", 784), generator=generator)
        return Family(make, inputs, _classification)
    config: Any = make(64).config
    side = getattr(config, "image", 32)
    images = torch.randn(batch * 4, config.channels, side, side, generator=generator)
    return Family(make, images, _classification)


def _classification(output: Tensor, inputs: Tensor) -> Tensor:
    """Cross entropy against labels fixed by the place in the batch."""
    labels = torch.arange(output.shape[0], device=output.device) % output.shape[-1]
    return F.cross_entropy(output, labels)


def _hugging_face(path: Path, settings: dict[str, Any], batch: int, tokens: int) -> Family:
    if not path.is_file():
        raise InputError(f"no configuration at {path}")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise InputError("a config.json needs the extra: pip install 'sigprop[hf]'") from error
    config = AutoConfig.from_pretrained(path)
    for key, value in settings.items():
        setattr(config, key, value)

    def make(width: int, depth: int | None = None) -> nn.Module:
        changed = copy.deepcopy(base_config(_Holder(config), width))
        if depth is not None:
            changed.num_hidden_layers = depth
        return AutoModelForCausalLM.from_config(changed)

    ids = text_batch(sample_text(), batch, tokens, min(256, config.vocab_size))
    return Family(make, {"input_ids": ids, "labels": ids})


class _Holder(nn.Module):
    """A model that is only its configuration."""

    def __init__(self, config: Any):
        super().__init__()
        self.config = config


def _file(path: Path, name: str, settings: dict[str, Any]) -> Family:
    if not path.is_file():
        raise InputError(f"no file at {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise UnknownNameError(
            f"factory in {path.name}", name, [key for key in vars(module) if not key.startswith("_")]
        )
    if not hasattr(module, "batch"):
        raise InputError(f"{path.name} needs a function batch() that returns what the model is trained on")
    factory = getattr(module, name)
    return Family(lambda *shape: factory(*shape, **settings), module.batch(), getattr(module, "loss", None))
