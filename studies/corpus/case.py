"""One model of the corpus, with its batch, and the half it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """`make` builds the model, `batch` its input. The first set has been looked at; of the second and third the half
    follows from the name alone, once and for all; the fourth and fifth are held out as a whole."""

    name: str
    kind: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    loss: Callable[..., Tensor] | None = None
    added: int = 1

    @property
    def number(self) -> int:
        return int(hashlib.md5(self.name.encode()).hexdigest(), 16)

    @property
    def half(self) -> str:
        held_out = self.added >= 4 or (self.added > 1 and self.number % 2)
        return f"held out of set {self.added}" if held_out else "development"

    @property
    def given_as_module(self) -> bool:
        """A third of the models is given as a module with weights, the others as the function that builds them."""
        return self.number % 3 == 0


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(vocabulary: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))
