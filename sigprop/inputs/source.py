"""A MODEL as people write it, as one model to run: how to build it, a batch and a loss.

transformer                      a reference network, with settings
model.py:Model(width=256)        a class, function or module of a file; its `batch()` and `loss()` are used too
config.json                      a Hugging Face config: the architecture at initialization
checkpoint/                      a folder as `save_pretrained` writes it: with its weights
org/name                         a model of the hub that this machine has cached
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.batches import first_batch
from sigprop.errors import InputError, UnknownNameError, require
from sigprop.inputs import hugging_face
from sigprop.inputs.batches import Wanted, read_data
from sigprop.inputs.user_file import UserObject, is_user_object, names_in, read_user_object, user_code
from sigprop.losses import LossChoice
from sigprop.models import REFERENCE, build, load_text, sample_text, text_batch

KINDS = "file.py:Model(width=256), a config.json, a checkpoint folder, or a cached hub id"


@dataclass(frozen=True)
class ModelSource:
    """`build()` makes the model, newly initialized unless `fixed`; `loss` is None where the model returns its own."""

    name: str
    build: Callable[[], nn.Module]
    batch: Any = None
    loss: LossChoice = None
    fixed: bool = False

    def require_draws(self, seeds: int) -> None:
        """Several initializations are asked of something that has one set of weights."""
        require(seeds >= 1, "seeds", seeds, "at least 1")
        if self.fixed and seeds > 1:
            raise InputError(
                f"seeds = {seeds}: {self.name} has fixed weights; give 1, or a config or function that initializes"
            )

    def required_batch(self) -> Any:
        """The batch, which a measurement cannot do without."""
        if self.batch is None:
            raise InputError(f"{self.name} comes without a batch: define batch() in its file, or give --data")
        return self.batch


def open_source(
    model: str, settings: dict[str, Any] | None = None, data: str | None = None, batch: int = 4, tokens: int = 128
) -> ModelSource:
    """What a MODEL argument names, with `data` (a text file, a folder of images, `file.py:name`) or its own batch."""
    require(batch > 0, "batch", batch, "at least 1")
    require(tokens > 1, "tokens", tokens, "at least 2")
    require(bool(model.strip()), "model", model, f"a reference network, {KINDS}")
    settings, wanted = settings or {}, Wanted(batch, tokens)
    if model in REFERENCE:
        return _reference(model, settings, data, wanted)
    if is_user_object(model):
        return _of_file(model, settings, data, wanted)
    return _of_hub(model, settings, data, wanted)


def builder_of(model: Any) -> Callable[[], nn.Module]:
    """A function that builds what Python code was given: a config, a path or id, or a function that builds already."""
    if isinstance(model, (str, Path)):
        if is_user_object(str(model)):
            return _calls(str(model), {})[0]
        return hugging_face.open_model(str(model), {}).build
    if hugging_face.is_config(model):
        return lambda: hugging_face.from_config(model)
    if callable(model):
        _require_callable(model, (), {}, f"pass an instance, or lambda: {getattr(model, '__name__', 'Model')}")
        return cast(Callable[[], nn.Module], model)
    raise InputError(f"model is {type(model).__name__}: needs a module, a function that builds one, {KINDS}")


def as_module(model: Any, build: Callable[[Callable[[], nn.Module]], nn.Module]) -> nn.Module:
    """A module as it is, a folder with weights as the model they are, and anything else as `build` makes it."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, (str, Path)) and not is_user_object(str(model)):
        opened = hugging_face.open_model(str(model), {})
        if opened.fixed:
            return opened.build()
    return build(builder_of(model))


def _reference(name: str, settings: dict[str, Any], data: str | None, wanted: Wanted) -> ModelSource:
    make = lambda: build(name, **settings)  # noqa: E731
    make()
    config: Any = REFERENCE[name].config(**settings)
    if name == "transformer":
        words = sample_text() if data is None else load_text(data)
        ids = text_batch(words, wanted.batch, min(wanted.tokens, config.context), config.vocabulary)
        if config.kind == "encoder_decoder":
            return ModelSource(name, make, (ids, ids))
        return ModelSource(name, make, ids, next_token if config.kind == "decoder" else None)
    if data is not None:
        return ModelSource(
            name, make, read_data(data, wanted, channels=getattr(config, "channels", 3), side=_side(config))
        )
    generator = torch.Generator().manual_seed(0)
    if name == "mlp":
        return ModelSource(name, make, torch.randn(wanted.batch, config.inputs, generator=generator))
    shape = (wanted.batch, config.channels, _side(config), _side(config))
    return ModelSource(name, make, torch.randn(shape, generator=generator))


def _side(config: Any) -> int:
    return getattr(config, "image", 32)


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _calls(text: str, settings: dict[str, Any]) -> tuple[Callable[[], nn.Module], bool, UserObject]:
    """What builds the model that a file names, whether its weights are fixed, and the object."""
    found = read_user_object(text)
    if isinstance(found.value, nn.Module):
        if settings or found.arguments or found.settings:
            raise InputError(f"{text} is a module already: it takes no settings")
        return lambda: copy.deepcopy(found.value), True, found
    if not callable(found.value):
        raise InputError(f"{text} is a {type(found.value).__name__}: needs an nn.Module, a class or a function")

    given = {**(found.settings or {}), **settings}
    _require_callable(found.value, found.arguments, given, f"write {text.partition('(')[0]}")

    def make() -> nn.Module:
        made = found.call(**settings)
        if not isinstance(made, nn.Module):
            raise InputError(f"{text} returned {type(made).__name__}: needs an nn.Module")
        return made

    return make, False, found


def _require_callable(function: Any, given: tuple[Any, ...], settings: dict[str, Any], instead: str) -> None:
    """Raise for a class or function that cannot be called with these arguments, before it is."""
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        parameters.bind(*given, **settings)
    except TypeError as error:
        needed = ", ".join(
            f"{item.name}=..."
            for item in parameters.parameters.values()
            if item.default is item.empty and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        )
        what = f"{getattr(function, '__name__', function)}{parameters}: {error}"
        raise InputError(f"{what}; {instead}({needed})" if needed else what) from error


def _of_file(text: str, settings: dict[str, Any], data: str | None, wanted: Wanted) -> ModelSource:
    make, fixed, found = _calls(text, settings)
    loss, batch = (getattr(found.module, name, None) for name in ("loss", "batch"))
    if data is not None or batch is None:
        return ModelSource(text, make, None if data is None else read_data(data, wanted), loss, fixed)
    with user_code(found.path):
        batch = batch() if callable(batch) else batch
    return ModelSource(text, make, first_batch(batch), loss, fixed)


def _of_hub(text: str, settings: dict[str, Any], data: str | None, wanted: Wanted) -> ModelSource:
    if text.endswith(".py") and Path(text).is_file():
        held = ", ".join(names_in(Path(text))) or "neither a class nor a function"
        raise InputError(f"{text} is a file: needs {text}:NAME; it holds {held}")
    if not hugging_face.looks_like_one(text):
        raise UnknownNameError("model", text, REFERENCE, f"Or give {KINDS}.")
    opened = hugging_face.open_model(text, settings)
    try:
        batch = opened.batch(data, wanted)
    except InputError:
        if data is not None:
            raise
        batch = None  # what needs one says so; initializations are compared without
    return ModelSource(text, opened.build, batch, None, opened.fixed)
