"""Batches from what people have: a `DataLoader`, a text file, a folder of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sigprop.batches import first_batch
from sigprop.errors import InputError, UnsupportedError
from sigprop.inputs.user_file import is_user_object, read_user_object
from sigprop.models import load_text, text_batch

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
SIDE = 224


@dataclass(frozen=True)
class Wanted:
    """How much data a command asks for."""

    batch: int
    tokens: int


def read_data(text: str, wanted: Wanted, channels: int = 3, side: int | None = None) -> Any:
    """A folder as images, `file.py:name` as what it gives, any other file as bytes of text."""
    if is_user_object(text):
        return read_batch(text)
    if Path(text).is_dir():
        return image_batch(Path(text), wanted.batch, channels, side)
    return text_batch(load_text(text), wanted.batch, wanted.tokens)


def read_batch(text: str) -> Any:
    """What `file.py:name` gives: a batch, the first one of a loader, or what a function returns."""
    found = read_user_object(text)
    return first_batch(found.call() if callable(found.value) and not _is_loader(found.value) else found.value)


def _is_loader(value: Any) -> bool:
    return isinstance(value, torch.utils.data.DataLoader)


def image_batch(folder: Path, count: int, channels: int = 3, side: int | None = None) -> Tensor:
    """The first images of a folder by name, resized and centred to zero mean and unit variance.

    Their own size is kept when it is that of all and no side is asked for; else they are made squares.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError("images need pillow: pip install pillow") from error

    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES)[:count]
    if not paths:
        raise InputError(f"no image in {folder}: looked for {', '.join(IMAGES)}")
    images = []
    for path in paths:
        try:
            images.append(Image.open(path).convert("L" if channels == 1 else "RGB"))
        except OSError as error:
            raise InputError(f"{path} cannot be read as an image: {error}") from error
    if side is not None or len({image.size for image in images}) > 1:
        images = [image.resize((side or SIDE, side or SIDE)) for image in images]
    pixels = torch.stack([torch.from_numpy(np.array(image, dtype=np.float32)) for image in images])
    pixels = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
    return ((pixels - pixels.mean()) / pixels.std().clamp_min(1e-6)).contiguous()
