"""A batch where none was given: Zipf-like token ids and noise, of the shapes that the model takes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.compat import BatchNorm, ConvNd
from sigprop.errors import InputError

TOKENS, LONGEST = 128, 2**31
"""Of a random batch where no number is asked for: as many as theory follows pair by pair."""
SEVERAL = 4
"""Images, or images with their texts, for models that normalize over them or compare each with all."""
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
PLACES = re.compile(r"(image|audio|video|speech)_token(_id|_index)?")
"""Settings of models whose text has places for images and sounds, which only a processor fills: text alone is right."""
FREQUENCIES = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
"""Settings that say how many numbers describe a sound at one time."""
SIGNALS = ("pixel_values", "input_features", "input_values")
INPUTS = ("input_ids", *SIGNALS)
TARGETS = ("targets", "target", "labels")
CLASSIFIERS = ("ImageClassification", "SequenceClassification", "AudioClassification")


def zipf_ids(vocabulary: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Token ids with frequencies falling like 1/rank, ranks in random order."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    ranks = torch.multinomial(weights, max(1, int(torch.Size(shape).numel())), True, generator=generator)
    return torch.randperm(vocabulary, generator=generator)[ranks].reshape(shape)


def made_up_batch(model: nn.Module, tokens: int, seed: int = 0) -> Any:
    """Token ids, noise images and noise sounds, with labels where the model takes them: every input of its forward that
    its config describes."""
    config = getattr(model, "config", None)
    names = inspect.signature(model.forward).parameters
    if config is None or not hasattr(config, "model_type"):
        return _plain_batch(model, tokens, seed)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit = _positions(text, model)
    limit -= 2 if limit > 4 else 0  # RoBERTa and its kin keep two positions for padding
    several = "return_loss" in names or any(isinstance(item, BatchNorm) and item.training for item in model.modules())
    count, length = SEVERAL if several else 1, min(tokens, limit)
    sees = bool(set(SIGNALS) & set(names)) and not _has_places(config)
    writes = "decoder_input_ids" in names and bool(getattr(config, "is_encoder_decoder", False))
    reads = "input_ids" in names and not (sees and writes)
    batch = {}
    if reads or writes:
        vocabulary = getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None)
        if vocabulary is None:
            raise InputError(f"{type(model).__name__}: no vocabulary in its config; pass a batch")
        books = _codebooks(model)
        if books:
            codes = zipf_ids(int(vocabulary), (books, length), seed)
            return {"input_ids": codes, "labels": codes.T[None].clone(), "use_cache": False}
        batch = _ids(int(vocabulary), (count, length), seed, reads, writes, "labels" in names)
        end = getattr(text, "eos_token_id", None)
        if "return_loss" in names and isinstance(end, int) and 0 <= end < int(vocabulary):
            batch["input_ids"][:, -1] = end  # where the summary of a text is read
    if "labels" in names and (not batch or type(model).__name__.endswith(CLASSIFIERS)):
        batch["labels"] = _class_labels(config, seed, count)
    batch |= {name: value for name, value in (("use_cache", False), ("return_loss", True)) if name in names}
    return _with_signals(model, config, names, batch, count, tokens, seed) if sees else batch


def _ids(vocabulary: int, shape: tuple[int, int], seed: int, reads: bool, writes: bool, labels: bool) -> dict[str, Any]:
    """What is read and what is written, with labels for it."""
    batch: dict[str, Any] = {"input_ids": zipf_ids(vocabulary, shape, seed)} if reads else {}
    if writes:
        batch["decoder_input_ids"] = zipf_ids(vocabulary, shape, seed + 1)
    if labels:
        batch["labels"] = zipf_ids(vocabulary, shape, seed + 2) if writes else batch["input_ids"].clone()
    return batch


def _has_places(config: Any) -> bool:
    return any(PLACES.fullmatch(name) for name in vars(config))


def _with_signals(
    model: nn.Module, config: Any, names: Any, batch: dict[str, Any], count: int, tokens: int, seed: int
) -> dict[str, Any]:
    """The batch with images and sounds; a sound of the first shape that the forward takes."""
    generator = torch.Generator().manual_seed(seed)
    if "spatial_shapes" in names:
        return batch | _patches(config, int(getattr(config, "num_channels", 3) or 3), generator)
    if "pixel_values" in names:
        return batch | {"pixel_values": torch.randn(count, *_image_shape(config), generator=generator)}
    name = "input_features" if "input_features" in names else "input_values"
    rest = {key: value for key, value in batch.items() if key != "labels"}
    for shape in _sound_shapes(config, name, tokens):
        sound = {name: torch.randn(count, *shape, generator=generator)}
        if _takes(model, rest | sound):
            return batch | sound
    raise InputError(f"{type(model).__name__}: no {name} can be made for it: pass a batch")


def _sound_shapes(config: Any, name: str, tokens: int) -> Iterator[tuple[int, ...]]:
    """Frames by frequencies and the reverse, some eight for a token and as many as there are positions; or a wave."""
    sound = getattr(config, "audio_config", config)
    bins = next((getattr(sound, key) for key in FREQUENCIES if hasattr(sound, key)), None)
    if bins is None:
        yield (math.prod(getattr(sound, "conv_stride", None) or (320,)) * (tokens + 1),)
        return
    longest = getattr(sound, "max_source_positions", None) or getattr(sound, "max_length", None) or 0
    for frames in (8 * tokens, longest, 2 * longest):
        yield from ((frames, int(bins)), (int(bins), frames))


def _takes(model: nn.Module, batch: dict[str, Any]) -> bool:
    """Whether the forward runs without any number being computed, or up to where it asks for one."""
    held = chain(model.named_parameters(), model.named_buffers())
    blank = {name: torch.empty_like(item, device="meta") for name, item in held}
    signals = {key: item.to("meta") if isinstance(item, Tensor) else item for key, item in batch.items()}
    try:
        with torch.no_grad(), torch.device("meta"):
            torch.func.functional_call(model, blank, (), signals)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return isinstance(error, NotImplementedError) or "on meta tensors" in str(error)
    return True


def _positions(config: Any, model: nn.Module) -> int:
    """How many positions a model has, by its config and by the tables of positions that it learns, images' aside."""
    known = [getattr(config, name, None) for name in POSITIONS]
    parts = ((name, getattr(module, "config", None)) for name, module in model.named_modules())
    images = tuple(f"{name}." for name, part in parts if name and hasattr(part, "image_size"))
    for name, parameter in model.named_parameters():
        if POSITION_TABLE.search(name) and parameter.dim() > 1 and not name.startswith(images):
            known.append(parameter.shape[-2])
    return min((item for item in known if isinstance(item, int) and item > 0), default=LONGEST)


def _codebooks(model: nn.Module) -> int:
    """How many sequences of codes a model sums the embeddings of."""
    for module in model.modules():
        if isinstance(getattr(module, "embed_tokens", None), nn.ModuleList):
            return int(getattr(module, "num_codebooks", 0))
    return 0


def _image_shape(config: Any) -> tuple[int, int, int]:
    vision = config if getattr(config, "image_size", None) else getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 32
    size = (size["height"], size["width"]) if isinstance(size, dict) else size
    height, width = (int(side) for side in (size if isinstance(size, (tuple, list)) else (size, size)))
    return int(getattr(vision, "num_channels", 3) or 3), height, width


def _patches(config: Any, channels: int, generator: torch.Generator) -> dict[str, Any]:
    """Patches of a square image, for models that take images of any shape."""
    vision = getattr(config, "vision_config", config)
    side = max(2, math.isqrt(min(int(vision.num_patches), 64)))
    pixels = torch.randn(1, side**2, channels * int(vision.patch_size) ** 2, generator=generator)
    mask = torch.ones(1, side**2, dtype=torch.long)
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[side, side]])}


def _class_labels(config: Any, seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(int(getattr(config, "num_labels", 2)), (count,), generator=generator)


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
