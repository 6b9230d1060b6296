"""A model without its weights: what the trace runs."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from sigprop.distributions import COPIED, Distribution, build, copied_with, distribution, is_copied, parameters_on_meta

__all__ = ["Distribution", "build", "distribution", "law_of", "skeleton_of"]


def skeleton_of(model: nn.Module, frozen: bool = False) -> nn.Module:
    """A copy of a model with its trainable (and `frozen`) parameters on meta; the model itself is not touched."""
    return copied_with(model, parameters_on_meta(model, frozen))


def law_of(parameter: Tensor) -> Distribution:
    """The law of a parameter's entries; a draw that others have too is no draw of its own."""
    law = distribution(parameter)
    return replace(law, kind=COPIED) if is_copied(parameter) and law.variance else law
