"""Images and labels in the IDX format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sigprop.errors import InputError

KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def load_idx(path: str | Path) -> Tensor:
    """Read an IDX file, plain or gzip-compressed, as a tensor of its own type and shape."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no IDX file at {path}")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in KINDS:
        raise InputError(f"{path} is not an IDX file: it starts with bytes {list(content[:4])}")
    kind, axes = np.dtype(KINDS[content[2]]), content[3]
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:start]) if len(content) >= start else ()
    expected = int(np.prod(shape)) * kind.itemsize
    if len(content) < start or len(content) - start != expected:
        raise InputError(f"{path}: shape {shape} needs {expected} bytes of data, the file has {len(content) - start}")
    values = np.frombuffer(content, dtype=kind, offset=start).reshape(shape)
    return torch.from_numpy(values.astype(kind.newbyteorder("=")))


def normalized_images(path: str | Path, count: int | None = None) -> Tensor:
    """Images of an IDX file as floats (count, 1, height, width) with zero mean and unit variance overall."""
    images = load_idx(path)[:count].float().unsqueeze(1)
    return (images - images.mean()) / images.std()
