"""What `check` looks at: weights where a model is small enough to build them, laws where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sigprop.distributions import build
from sigprop.inputs import open_source, parse_settings
from sigprop.losses import LossChoice

LARGEST = 600_000_000
"""Parameters of a model whose weights are drawn: 2.4 GB in float32."""


@dataclass(frozen=True)
class Checked:
    """A model, with weights or on meta, a batch (None: made up) and a loss."""

    model: nn.Module
    batch: Any
    loss: LossChoice


def model_and_batch(name: str, settings: list[str], data: str | None, batch: int, tokens: int, seed: int) -> Checked:
    """The model that the command names; its weights, drawn with the seed, unless they would be too many."""
    source = open_source(name, parse_settings(settings), data, batch, tokens)
    if source.fixed:
        return Checked(source.build(), source.batch, source.loss)
    skeleton = build(source.build)
    if sum(parameter.numel() for parameter in skeleton.parameters()) > LARGEST:
        return Checked(skeleton, source.batch, source.loss)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Checked(source.build(), source.batch, source.loss)
