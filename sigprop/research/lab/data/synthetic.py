"""Data that need no file: tokens with Zipf's frequencies, Gaussian images with random labels."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.research.lab.data.order import generator_at


def zipf_tokens(count: int, vocabulary: int, exponent: float = 1.0, seed: int = 0) -> Tensor:
    """Independent tokens; the one of rank `r` has probability proportional to `r^-exponent`."""
    require(count > 0, "count", count, "at least 1")
    require(vocabulary > 1, "vocabulary", vocabulary, "at least 2")
    weights = torch.arange(1, vocabulary + 1, dtype=torch.float64) ** -exponent
    return torch.multinomial(weights, count, replacement=True, generator=generator_at(seed, 0)).int()


def gaussian_images(count: int, shape: tuple[int, int, int], classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """White noise images and labels that have nothing to do with them."""
    require(count > 0, "count", count, "at least 1")
    generator = generator_at(seed, 0)
    return torch.randn(count, *shape, generator=generator), torch.randint(classes, (count,), generator=generator)
