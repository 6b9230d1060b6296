"""A model without its weights: what the trace runs."""

from __future__ import annotations

from torch import nn

from sigprop.initialization import Distribution, build, copied_with, distribution, parameters_on_meta
from sigprop.process import observers

__all__ = ["Distribution", "build", "distribution", "skeleton_of"]


def skeleton_of(model: nn.Module) -> nn.Module:
    """A copy of a model with its trainable parameters on meta; the model itself is not touched."""
    replaced = parameters_on_meta(model)
    for _, hooks, key in observers(model):
        replaced[id(hooks[key])] = hooks[key]  # not run on the copy, and perhaps not to be copied
    return copied_with(model, replaced)
