"""`predict` for whatever a user brings: a blueprint, a module, a function, a config or a string."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sigprop.blueprints import Blueprint
from sigprop.blueprints import predict as predict_blueprint
from sigprop.capture import build as skeleton
from sigprop.errors import SigpropError
from sigprop.inputs import TOKENS, as_module, made_up_batch
from sigprop.prediction import predict as predict_model
from sigprop.results import Profile
from sigprop.theory.corrections import correcting


def predict(model: Any, batch: Any = None, *, corrections: Iterable[str] | None = None, **options: Any) -> Profile:
    """Moments of every site and of its gradient: from theory, verified on the real model where that is cheap, and
    simulated where theory cannot follow.

    `model` is a blueprint, an nn.Module (left as it was), a function that builds one, a Hugging Face config, or what
    the command line takes: `file.py:Model(width=256)`, a `config.json`, a checkpoint folder, a cached hub id.
    `batch` is a tensor, a tuple (arguments, or inputs and targets), a mapping or a `DataLoader`, as for `measure`;
    random (Zipf-like ids, noise images) when None, and then of `tokens` tokens where the model has room for them. With
    a batch `tokens` is the longest sequence that theory follows. For a blueprint the only option is `top`, the
    gradient at its output; for the others see `sigprop.prediction.predict`.
    `corrections`: which of `sigprop.theory.corrections` theory makes; all of them when None.
    """
    with correcting(corrections):
        return _predict(model, batch, options)


def _predict(model: Any, batch: Any, options: dict[str, Any]) -> Profile:
    if isinstance(model, Blueprint):
        return predict_blueprint(model, **options)
    loaded = as_module(model, skeleton)
    if batch is not None:
        return predict_model(loaded, batch, **options)
    made = made_up_batch(loaded, options.pop("tokens", TOKENS), options.get("seed", 0))
    note = "random: Zipf-like token ids or noise"
    try:
        profile = predict_model(loaded, made, **options)
    except SigpropError:
        if not (isinstance(made, Mapping) and "labels" in made):
            raise
        bare = {key: value for key, value in made.items() if key != "labels"}
        profile = predict_model(loaded, bare, **options)
        note += ", no labels: the model's own loss does not take them"
    profile.meta["batch"] = note
    return profile
