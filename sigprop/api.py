"""The few functions that most people need, gathered from the rooms."""

from __future__ import annotations

from typing import Any

from sigprop.blueprints import Blueprint
from sigprop.blueprints import predict as predict_blueprint
from sigprop.results import Profile
from sigprop.trace import predict as predict_model


def predict(model: Any, batch: Any = None, **options: Any) -> Profile:
    """Moments of every site and of its gradient, from theory.

    `model` is a blueprint, an nn.Module (left as it was), a Hugging Face config, the path of a `config.json`, or
    `file.py:factory`. For a blueprint the only option is `top`, the gradient at its output; for the others see
    `sigprop.trace.predict`.
    """
    if isinstance(model, Blueprint):
        return predict_blueprint(model, **options)
    return predict_model(model, batch, **options)
