"""A model without its weights: what the trace runs."""

from __future__ import annotations

from torch import nn

from sigprop.distributions import Distribution, build, copied_with, distribution, law_of, parameters_on_meta

__all__ = ["Distribution", "build", "distribution", "law_of", "skeleton_of"]


def skeleton_of(model: nn.Module, frozen: bool = False) -> nn.Module:
    """A copy of a model with its trainable (and `frozen`) parameters on meta; the model itself is not touched."""
    return copied_with(model, parameters_on_meta(model, frozen))
