"""Data that ships with sigprop: a sample of text, and images made of noise."""

from __future__ import annotations

import gzip
import struct
import zlib
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sigprop.errors import InputError, require

VOCABULARY = 256


def encode(text: str) -> Tensor:
    """UTF-8 bytes of a text as token ids 0 to 255."""
    return torch.tensor(list(text.encode("utf-8")), dtype=torch.long)


def decode(tokens: Tensor) -> str:
    """The text of byte tokens; broken characters become the replacement sign."""
    return bytes(tokens.flatten().tolist()).decode("utf-8", errors="replace")


def sample_text() -> str:
    """The text that ships with the package."""
    return resources.files("sigprop.models").joinpath("data/shakespeare.txt").read_text(encoding="utf-8")


def load_text(path: str | Path) -> str:
    """Read a text file, plain or gzip-compressed; what is empty or not text is refused."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no text file at {path}")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not text.strip():
        raise InputError(f"{path} is empty: a text file is needed")
    if "\0" in text:
        raise InputError(f"{path} is binary: it holds zero bytes; a text file is needed")
    return text


def text_batch(text: str, batch: int, tokens: int, vocabulary: int = VOCABULARY) -> Tensor:
    """`batch` passages of `tokens` bytes, spread evenly over the text, as ids below `vocabulary`."""
    require(batch > 0, "batch", batch, "at least 1")
    require(tokens > 0, "tokens", tokens, "at least 1")
    require(vocabulary > 0, "vocabulary", vocabulary, "at least 1")
    return passages(encode(text), batch, tokens, "bytes") % vocabulary


def passages(stream: Tensor, batch: int, tokens: int, unit: str = "tokens") -> Tensor:
    """So many passages of a text's ids, spread evenly over it."""
    if stream.numel() < tokens:
        raise InputError(f"the text has {stream.numel()} {unit}: a passage needs {tokens}")
    starts = torch.linspace(0, stream.numel() - tokens, batch).long()
    return torch.stack([stream[start : start + tokens] for start in starts.tolist()])


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
