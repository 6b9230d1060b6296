"""Data for small, exact trainings. A batch is a function of a seed and a step alone, so that any run can be resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sigprop.errors import InputError, require
from sigprop.losses import described, first_signal, objective
from sigprop.models import load_idx, normalized_images


def generator_at(seed: int, place: int) -> torch.Generator:
    """A generator for step or epoch `place` of the run `seed`; nearby pairs give unrelated numbers."""
    state = np.random.SeedSequence([seed, place]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


# -- text


@dataclass(frozen=True)
class TextBatches:
    """Passages at random places of one stream of tokens: `batches(step)` is the same whenever it is asked for.

    Every token is to be predicted from those before it; the model shifts the labels.
    """

    tokens: Tensor = field(repr=False)
    passages: int
    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.passages > 0, "passages", self.passages, "at least 1")
        require(self.length > 1, "length", self.length, "at least 2")
        if len(self.tokens) < self.length:
            raise InputError(f"the text has {len(self.tokens)} tokens: a passage needs {self.length}")

    def __call__(self, step: int) -> dict[str, Tensor]:
        generator = generator_at(self.seed, step)
        starts = torch.randint(len(self.tokens) - self.length + 1, (self.passages, 1), generator=generator)
        ids = self.tokens[starts + torch.arange(self.length)].long()
        return {"input_ids": ids, "labels": ids}

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        """For models that return logits only."""
        logits = first_signal(output)
        if logits is None or logits.dim() != 3:
            raise InputError(f"the model returned {described(output)}: needs logits (passages, tokens, vocabulary)")
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch["labels"][:, 1:].flatten())


def tokens_of(text: str) -> Tensor:
    """Token ids of a text: its bytes."""
    return torch.from_numpy(np.frombuffer(text.encode("utf-8"), dtype=np.uint8).copy())


def zipf_tokens(count: int, vocabulary: int) -> Tensor:
    """Independent tokens; the one of rank `r` has probability proportional to `1 / r`."""
    require(count > 0, "count", count, "at least 1")
    require(vocabulary > 1, "vocabulary", vocabulary, "at least 2")
    weights = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return torch.multinomial(weights, count, replacement=True, generator=generator_at(0, 0)).int()


# -- images


@dataclass(frozen=True, eq=False)
class ImageBatches:
    """Every image once an epoch, in an order that seed and epoch alone decide; a short last batch is left out."""

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    size: int
    seed: int = 0
    keys: tuple[str, str] = ("pixel_values", "labels")

    def __post_init__(self) -> None:
        require(0 < self.size <= len(self.images), "size", self.size, f"1 to {len(self.images)}, the number of images")
        if len(self.images) != len(self.labels):
            raise InputError(f"{len(self.images)} images and {len(self.labels)} labels: one label for each is needed")

    def __call__(self, step: int) -> dict[str, Tensor]:
        epoch, place = divmod(step, len(self.images) // self.size)
        order = _order(len(self.images), self.seed, epoch, self.images.device)
        chosen = order[place * self.size : (place + 1) * self.size]
        return dict(zip(self.keys, (self.images[chosen], self.labels[chosen].long()), strict=True))

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        """For models that return logits only."""
        return objective(output, {"labels": batch[self.keys[1]]}, "cross_entropy").tensor


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """Made on the CPU, the same everywhere; kept where the images are, so that no step waits for it."""
    return torch.randperm(count, generator=generator_at(seed, epoch)).to(device)


def labelled_idx(folder: str | Path, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images, normalized, and labels of the training part of a folder laid out as MNIST's."""
    found = [_only(Path(folder), f"train-{kind}-ubyte*") for kind in ("images-idx3", "labels-idx1")]
    return normalized_images(found[0], count), load_idx(found[1])[:count].long()


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise InputError(f"no file {pattern} in {folder}: the layout of MNIST and Fashion-MNIST is needed")
    return found[0]
