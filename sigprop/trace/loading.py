"""Models from what a user has at hand: a module, a Hugging Face config, a path, a factory."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.trace.skeleton import build

AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModel",
)


def load(source: Any) -> nn.Module:
    """The model that `source` names, without weights unless it is a module already."""
    if isinstance(source, nn.Module):
        return source
    if isinstance(source, (str, Path)):
        text = str(source)
        if text.endswith(".json") or Path(text).is_dir():
            return from_config(read_config(Path(text)))
        if ".py:" in text:
            return from_factory(text)
        raise InputError(f"model = {text!r} is not allowed: needs a module, a config, config.json or file.py:factory")
    if hasattr(source, "model_type") and hasattr(source, "to_dict"):
        return from_config(source)
    if callable(source):
        return build(cast(Callable[[], nn.Module], source))
    raise InputError(f"model is {type(source).__name__}: needs a module, a config, config.json or file.py:factory")


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UnsupportedError("a Hugging Face config needs transformers: pip install 'sigprop[hf]'") from error


def read_config(path: Path) -> Any:
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"no config at {path}")
    transformers = _transformers()
    try:
        settings = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind is None:
        raise InputError(f"{path} has no model_type: needs the config.json of a Hugging Face model")
    if kind not in transformers.CONFIG_MAPPING:
        hint = f"transformers {transformers.__version__} is installed."
        raise UnknownNameError(f"model_type in {path}:", kind, list(transformers.CONFIG_MAPPING), hint)
    return transformers.CONFIG_MAPPING[kind].from_dict(settings)


def from_config(config: Any) -> nn.Module:
    """A Hugging Face model in evaluation mode, float32, parameters on meta."""
    config.dtype = torch.float32
    kind = class_of(config)
    return build(lambda: kind(config)).eval()


def class_of(config: Any) -> Any:
    """The model class that a config names, else the first that takes it."""
    transformers = _transformers()
    for name in getattr(config, "architectures", None) or []:
        kind = getattr(transformers, name, None)
        if kind is not None:
            return kind
    for name in AUTO_CLASSES:
        mapping = getattr(transformers, name)._model_mapping if hasattr(transformers, name) else {}
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    raise InputError(f"no model class of transformers takes a {type(config).__name__}")


def from_factory(text: str) -> nn.Module:
    """`file.py:function`: the function is called without arguments and returns a module."""
    made = build(factory_of(text))
    if not isinstance(made, nn.Module):
        raise InputError(f"{text} returned {type(made).__name__}: needs an nn.Module")
    return made


def factory_of(text: str) -> Callable[[], nn.Module]:
    """The function that `file.py:function` names."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"no file at {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    factory = getattr(module, name, None)
    if not callable(factory):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{path} has no function {name!r}; it has {', '.join(known) or 'none'}")
    return cast(Callable[[], nn.Module], factory)
