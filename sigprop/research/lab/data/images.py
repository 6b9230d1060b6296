"""Images with labels: IDX files, folders with one folder per class; and batches of them, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sigprop.errors import InputError, require
from sigprop.losses import objective
from sigprop.models import load_idx, normalized_images
from sigprop.research.lab.data.text import generator_at

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


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
        chosen = _order(len(self.images), self.seed, epoch, self.images.device)[
            place * self.size : (place + 1) * self.size
        ]
        return dict(zip(self.keys, (self.images[chosen], self.labels[chosen].long()), strict=True))

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        """For models that return logits only."""
        return objective(output, {"labels": batch[self.keys[1]]}, "cross_entropy").tensor


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """Drawn on the CPU, the same everywhere; kept where the images are, so that no step waits for it."""
    return torch.randperm(count, generator=generator_at(seed, epoch)).to(device)


def labelled_idx(folder: str | Path, part: str = "train", count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images, normalized, and labels of a folder laid out as MNIST's: `train` or `t10k`."""
    found = [_only(Path(folder), f"{part}-{kind}-ubyte*") for kind in ("images-idx3", "labels-idx1")]
    return normalized_images(found[0], count), load_idx(found[1])[:count].long()


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise InputError(f"no file {pattern} in {folder}: the layout of MNIST and Fashion-MNIST is needed")
    return found[0]


def image_folder(folder: str | Path, side: int) -> tuple[Tensor, Tensor]:
    """Square colour images, normalized, and labels of a folder that has one folder for every class."""
    from PIL import Image, UnidentifiedImageError

    classes = sorted(path for path in Path(folder).glob("*") if path.is_dir())
    images, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted(item for item in name.iterdir() if item.suffix.lower() in SUFFIXES):
            try:
                with Image.open(path) as picture:
                    images.append(np.asarray(picture.convert("RGB").resize((side, side)), dtype=np.float32))
            except (UnidentifiedImageError, OSError) as error:
                raise InputError(f"{path} is not an image that can be read: {error}") from error
            labels.append(label)
    if not images:
        raise InputError(f"no images in the folders of {folder}: one folder for every class is needed")
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    return (pixels - pixels.mean()) / pixels.std().clamp_min(1e-6), torch.tensor(labels)
