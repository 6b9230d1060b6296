"""Models of the transformers library: a config, a checkpoint folder, a cached id. No code of a model is run."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import safe_open
from torch import Tensor, nn

from sigprop.compat import (
    BatchNorm,
    cached_folder,
    model_class,
    quiet_transformers,
    transformers_library,
    without_foreign_attention,
)
from sigprop.errors import InputError, SigpropError, UnknownNameError, UnsupportedError, require
from sigprop.inputs.batches import Wanted, image_batch, read_data
from sigprop.inputs.synthetic import INPUTS, made_up_batch
from sigprop.inputs.user_file import is_user_object
from sigprop.models import load_text, sample_text, text_batch
from sigprop.models.data import passages

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
LAYERS = 100_000
"""More than any memory holds: a model of as many would be built for ever."""


@dataclass(frozen=True)
class Opened:
    """A config with the folder it came from; `weights` is the folder to read them from, None at initialization."""

    config: Any
    folder: Path
    weights: Path | None = None

    @property
    def fixed(self) -> bool:
        return self.weights is not None

    def build(self) -> nn.Module:
        return from_config(self.config) if self.weights is None else from_folder(self.weights, self.config)

    def batch(self, data: str | None, wanted: Wanted) -> Any:
        """A batch of the shapes that the model takes, filled with the given data or the shipped text."""
        with torch.device("meta"):
            blank = _built(self.config)
        if data is not None and is_user_object(data):
            return read_data(data, wanted)
        made = made_up_batch(blank, wanted.tokens)
        inputs = {name for name in made if name in INPUTS}
        if inputs == {"input_ids"} and made["input_ids"].shape[0] == 1:
            return _filled(made, self._ids(data, wanted, made["input_ids"].shape[1]))
        if data is None:
            return made
        if inputs != {"pixel_values"}:
            raise InputError(f"{type(blank).__name__} reads {', '.join(sorted(inputs))}: give file.py:batch for them")
        pixels = made["pixel_values"]
        return {"pixel_values": image_batch(Path(data), wanted.batch, pixels.shape[1], pixels.shape[-1])}

    def _ids(self, data: str | None, wanted: Wanted, tokens: int) -> Tensor:
        """Passages of the text by the model's own tokenizer if the folder has one, else by bytes."""
        words = sample_text() if data is None else load_text(data)
        text = self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        vocabulary = int(text.vocab_size)
        if any((self.folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            tokenizer = transformers_library().AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
            stream = torch.tensor(tokenizer(words, add_special_tokens=False)["input_ids"])
            return passages(stream, wanted.batch, tokens)
        return text_batch(words, wanted.batch, tokens, min(256, vocabulary))


def _filled(made: dict[str, Any], ids: Tensor) -> dict[str, Any]:
    """A made-up batch with its token ids (and labels that were token ids) replaced."""
    shape = made["input_ids"].shape
    same = {key for key, value in made.items() if isinstance(value, Tensor) and value.shape == shape}
    rest = {
        key: value.expand(ids.shape[0], *value.shape[1:]) if isinstance(value, Tensor) else value
        for key, value in made.items()
        if key not in same
    }
    return {**dict.fromkeys(sorted(same), ids), **rest}


def is_config(value: Any) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "to_dict")


def looks_like_one(text: str) -> bool:
    """A path that ends in .json, a folder, or an id `org/name`."""
    return text.endswith(".json") or Path(text).is_dir() or bool(re.fullmatch(r"[\w.-]+/[\w.-]+", text))


def open_model(text: str, settings: dict[str, Any]) -> Opened:
    """A config.json (at initialization), a folder (with its weights, if there are any), or a cached hub id."""
    path = Path(text)
    if not text.endswith(".json") and not path.is_dir():
        path = cached_folder(text)
    config = read_config(path)
    for key, value in settings.items():
        if not hasattr(config, key):
            raise UnknownNameError(f"setting of {type(config).__name__}", key, config.to_dict())
        with _settings_judged(f"{path} with {key} = {value!r}"):
            setattr(config, key, value)
    if text.endswith(".json"):
        return Opened(config, path.parent)
    if any((path / name).is_file() for name in WEIGHTS):
        if settings:
            raise InputError(
                f"{text} has weights, which fix its shapes: give {path / 'config.json'} to change settings"
            )
        return Opened(config, path, path)
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise UnsupportedError(
            f"{text} has its weights as pickles, which can run code when read: save them with "
            f"save_pretrained(safe_serialization=True), or give {path / 'config.json'}"
        )
    return Opened(config, path)


def read_config(path: Path) -> Any:
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"no config at {path}")
    try:
        settings = json.loads(path.read_text(), object_hook=_infinite)
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply for a config") from error
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind is None:
        raise InputError(f"{path} has no model_type: needs the config.json of a Hugging Face model")
    transformers = transformers_library()
    if kind not in transformers.CONFIG_MAPPING:
        hint = f"transformers {transformers.__version__} is installed; code inside a model folder is never run."
        raise UnknownNameError(f"model_type in {path}:", kind, list(transformers.CONFIG_MAPPING), hint)
    with _settings_judged(str(path)), quiet_transformers():
        return transformers.CONFIG_MAPPING[kind].from_dict(settings)


def _infinite(item: dict[str, Any]) -> Any:
    """transformers 5 writes infinity as `{"__float__": "Infinity"}`."""
    return float(item["__float__"]) if item.keys() == {"__float__"} else item


def from_config(config: Any) -> nn.Module:
    """The model of a config in float32, newly initialized."""
    config = copy.deepcopy(config)
    config.dtype = torch.float32
    without_foreign_attention(config)
    return fresh(_built(config))


def fresh(model: nn.Module) -> nn.Module:
    """A new model as it is judged: without dropout; but its batch norms, which have no statistics yet, normalize."""
    model.eval()
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.train()
    return model


def from_folder(folder: Path, config: Any) -> nn.Module:
    """The model of a checkpoint folder. Weights in bfloat16 stay so, all others become float32. `loading_of` tells what
    did not fit."""
    _require_buildable(config)
    kept = torch.bfloat16 if getattr(config, "dtype", None) in (torch.bfloat16, "bfloat16") else torch.float32
    loose = {"ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        with torch.random.fork_rng(devices=[]), quiet_transformers():
            torch.manual_seed(0)  # of weights that are not in the folder
            stored = _stored_weights(folder, kept)
            model, info = model_class(config).from_pretrained(
                None, config=config, state_dict=stored, dtype=kept, **loose
            )
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"the weights in {folder} cannot be read: {what}") from error
    names = (
        sorted(map(_first_of, info.get(key, ()))) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    _LOADINGS[model] = LoadedFolder(str(folder), *map(tuple, names))
    return model.eval()


def _stored_weights(folder: Path, kept: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a folder, read one by one into memory of their own. What is mapped from a file cannot be lent to a
    pass: it would be copied."""
    whole, index = (folder / name for name in WEIGHTS)
    names = {whole.name} if whole.is_file() else set(json.loads(index.read_text())["weight_map"].values())
    found: dict[str, Tensor] = {}
    for name in sorted(names):
        with _opened(folder / Path(name).name) as file:
            for key in file.keys():  # noqa: SIM118
                value = file.get_tensor(key)
                found[key] = value.to(kept if value.is_floating_point() else value.dtype, copy=True)
    return found


def _opened(path: Path) -> Any:
    """A file of tensors, read without being mapped: mapped pages that were copied count as memory of the process."""
    try:
        return safe_open(str(path), framework="pt", backend="pread")  # type: ignore[call-arg]
    except TypeError:  # safetensors before 0.8
        return safe_open(str(path), framework="pt")


@dataclass(frozen=True)
class LoadedFolder:
    """What of a folder's weights did not get into the model: names the folder lacks, names the model lacks, and names
    whose shapes differ. Parameters of the first and the last kind are newly initialized."""

    folder: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    reshaped: tuple[str, ...] = ()


_LOADINGS: WeakKeyDictionary[nn.Module, LoadedFolder] = WeakKeyDictionary()


def loading_of(model: nn.Module) -> LoadedFolder | None:
    """How a model was loaded, where `from_folder` did it."""
    return _LOADINGS.get(model)


def _first_of(key: Any) -> str:
    return key if isinstance(key, str) else key[0]


def _built(config: Any) -> nn.Module:
    _require_buildable(config)
    with _settings_judged(type(config).__name__):
        return model_class(config)(config)


def _require_buildable(config: Any) -> None:
    layers = getattr(config, "num_hidden_layers", 0)
    require(not isinstance(layers, int) or layers <= LAYERS, "num_hidden_layers", layers, f"at most {LAYERS:,}")


@contextmanager
def _settings_judged(what: str) -> Iterator[None]:
    """Whatever transformers raises inside is said to be the settings' fault."""
    try:
        yield
    except SigpropError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"{what}: transformers does not take these settings: {told}") from error
