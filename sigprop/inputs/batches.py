"""Batches from what people have, a mapping, a `DataLoader`, a text file, a folder of images; and a synthetic one where
none was given: Zipf-like token ids, or noise, of the shapes that the model takes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.batches import first_batch
from sigprop.compat import ConvNd
from sigprop.errors import InputError, UnsupportedError
from sigprop.inputs.user_file import is_user_object, read_user_object
from sigprop.models import load_text, text_batch

TOKENS, LONGEST = 128, 2**31
"""Of a random batch where no number is asked for: as many as theory follows pair by pair."""
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "block_size",
    "context",
    "context_length",
    "max_seq_len",
    "n_ctx",
)
"""Settings of configs that say how many positions a model has."""
POSITION_TABLE = re.compile(r"(^|[._])(w?pe|pos\w*)([._]|$)")
"""Names of learned positions: wpe, pos_emb, position_embeddings."""
TARGETS = ("targets", "target", "labels")


def zipf_ids(vocabulary: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Token ids with frequencies falling like 1/rank, ranks in random order."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    ranks = torch.multinomial(weights, max(1, int(torch.Size(shape).numel())), True, generator=generator)
    return torch.randperm(vocabulary, generator=generator)[ranks].reshape(shape)


def made_up_batch(model: nn.Module, tokens: int, seed: int = 0) -> Any:
    """Token ids (with labels where the model takes them) or a noise image, read off the model's forward and config."""
    config = getattr(model, "config", None)
    names = inspect.signature(model.forward).parameters
    if config is None or not hasattr(config, "model_type"):
        return _plain_batch(model, tokens, seed)
    if "pixel_values" in names and "input_ids" not in names:
        return _image(model, config, names, seed)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None)
    if vocabulary is None:
        raise InputError(f"{type(model).__name__}: no vocabulary in its config; pass a batch")
    limit = _positions(text, model)
    limit -= 2 if limit > 4 else 0  # RoBERTa and its kin keep two positions for padding
    ids = zipf_ids(int(vocabulary), (1, min(tokens, limit)), seed)
    codebooks = _codebooks(model)
    if codebooks:
        books = zipf_ids(int(vocabulary), (codebooks, ids.shape[1]), seed)
        return {"input_ids": books, "labels": books.T[None].clone(), "use_cache": False}
    batch: dict[str, Any] = {"input_ids": ids}
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = zipf_ids(int(vocabulary), tuple(ids.shape), seed + 1)
    if "labels" in names:
        decoded = batch.get("decoder_input_ids")
        batch["labels"] = ids.clone() if decoded is None else zipf_ids(int(vocabulary), tuple(decoded.shape), seed + 2)
    if "labels" in names and type(model).__name__.endswith(("ImageClassification", "SequenceClassification")):
        batch["labels"] = _class_labels(config, seed)
    if "use_cache" in names:
        batch["use_cache"] = False
    return batch


def _positions(config: Any, model: nn.Module) -> int:
    """How many positions a model has, by its config and by the tables of positions that it learns."""
    known = [getattr(config, name, None) for name in POSITIONS]
    for name, parameter in model.named_parameters():
        if POSITION_TABLE.search(name) and parameter.dim() > 1:
            known.append(parameter.shape[-2])
    return min((item for item in known if isinstance(item, int) and item > 0), default=LONGEST)


def _codebooks(model: nn.Module) -> int:
    """How many sequences of codes a model sums the embeddings of."""
    for module in model.modules():
        if isinstance(getattr(module, "embed_tokens", None), nn.ModuleList):
            return int(getattr(module, "num_codebooks", 0))
    return 0


def _image(model: nn.Module, config: Any, names: Mapping[str, Any], seed: int) -> dict[str, Any]:
    size = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", None)
    if isinstance(size, (tuple, list)):
        height, width = int(size[0]), int(size[1])
    elif isinstance(size, Mapping):
        height, width = int(size["height"]), int(size["width"])
    else:
        height = width = int(size or 32)
    channels = int(getattr(config, "num_channels", 3) or 3)
    generator = torch.Generator().manual_seed(seed)
    batch: dict[str, Any] = {"pixel_values": torch.randn(1, channels, height, width, generator=generator)}
    if "spatial_shapes" in names:
        batch = _patches(config, channels, generator)
    if "labels" in names:
        batch["labels"] = _class_labels(config, seed)
    return batch


def _patches(config: Any, channels: int, generator: torch.Generator) -> dict[str, Any]:
    """Patches of a square image, for models that take images of any shape."""
    vision = getattr(config, "vision_config", config)
    side = max(2, math.isqrt(min(int(vision.num_patches), 64)))
    pixels = torch.randn(1, side**2, channels * int(vision.patch_size) ** 2, generator=generator)
    mask = torch.ones(1, side**2, dtype=torch.long)
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[side, side]])}


def _class_labels(config: Any, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(int(getattr(config, "num_labels", 2)), (1,), generator=generator)


def _plain_batch(model: nn.Module, tokens: int, seed: int) -> Any:
    """A module without a config: guessed from its first layer."""
    generator = torch.Generator().manual_seed(seed)
    module: Any
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and not POSITION_TABLE.search(name):
            limit = _positions(getattr(model, "config", None), model)
            ids = zipf_ids(module.num_embeddings, (1, min(tokens, limit) + 1), seed)
            names = list(inspect.signature(model.forward).parameters)
            targets = next((name for name in names[1:] if name in TARGETS), None)
            return ids[:, :-1] if targets is None else {names[0]: ids[:, :-1], targets: ids[:, 1:]}
        if isinstance(module, ConvNd):
            found: Any = module
            size = (tokens,) if isinstance(found, nn.Conv1d) else (16,) * len(found.kernel_size)
            return torch.randn(2, found.in_channels, *size, generator=generator)
        if isinstance(module, nn.Linear):
            return torch.randn(tokens, module.in_features, generator=generator)
    raise InputError(f"{type(model).__name__}: no random batch can be made for it: pass one")


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

    Their own size is kept when all are alike and no side is asked for; else they are made squares.
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
