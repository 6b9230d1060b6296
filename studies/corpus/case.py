"""One model of the corpus, with its batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """`make` builds the model, `batch` its input."""

    name: str
    kind: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    loss: Callable[..., Tensor] | None = None

    @property
    def given_as_module(self) -> bool:
        """A third of the models is given as a module with weights, the others as the function that builds them."""
        return int(hashlib.md5(self.name.encode()).hexdigest(), 16) % 3 == 0


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(vocabulary: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))
