"""Every model class of transformers in a small config, with the batch and the measurements that predictions are
compared with.

The measurements (`docs/data/class_measurements*.json`) were made by `studies.class_measurements`, which commit c73ab39
still has: every class built anew for each initialization, run forward and backward by the corpus' witness.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sigprop.capture import build
from sigprop.errors import UnsupportedError
from sigprop.inputs import made_up_batch
from sigprop.inputs.synthetic import zipf_ids

KINDS = {
    "causal LM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "masked LM": "MODEL_FOR_MASKED_LM_MAPPING",
    "seq2seq LM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "image classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}
MEASURED = Path("docs/data/class_measurements.json.gz")
OTHER = Path("docs/data/class_measurements_other.json")
"""The same classes in a setting that no rule was tried on: narrow, large weights, more tokens."""
TOKENS, MORE_TOKENS = 16, 22
LAYERS = 2
SMALL = {
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "n_layers": LAYERS, "num_layers": LAYERS, "encoder_layers": LAYERS,
    "decoder_layers": LAYERS, "num_decoder_layers": LAYERS, "num_encoder_layers": LAYERS, "image_size": 64,
    "max_position_embeddings": 128, "n_positions": 128, "block_size": 128, "num_experts": 16, "n_routed_experts": 16,
    "num_local_experts": 16, "num_experts_per_tok": 3, "moe_k": 3, "num_kv_shared_layers": 0,
    "num_self_attends_per_block": LAYERS, "num_latents": 64, "window_size": 2, "attention_window": 8, "H_cycles": 1,
    "L_cycles": 1, "num_blocks": LAYERS,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
BLANK = {
    "vocab_size": 1024, "num_experts_per_tok": 3, "n_routed_experts": 16, "n_shared_experts": 1,
    "layer_types": ["full_attention"] * LAYERS, "indexer_n_heads": 4, "indexer_kv_heads": 1, "clip_qkv": 8.0,
    "indexer_budget": 8, "indexer_compress_ratio": 4,
}  # fmt: skip
ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
VOCABULARY, LABELS, HEADS, NARROWEST, MULTIPLE = 1024, 100, 4, 64, 16
LARGE, LARGEST = 40_000_000, 250_000_000
WIDTH_KEYS = ("hidden_size", "d_model", "n_embd", "embedding_dim", "dim")
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "attention_heads")
WIDTHS = re.compile(
    r"hidden_size|intermediate_size|hidden_dim|ffn|d_model|d_ff|dff|d_inner|n_inner|n_embd|emb(edding)?_dim|embed_dim|rank"
    r"|embedding_size|embed_proj_dim|dim_ff|lru_width|d_latents|d_ssm|ngram_vocab|^dim$"
)
HEAD_COUNTS = re.compile(r"heads$|^n_head$|num_query_groups|n_groups$")
LAYER_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types", "attention_types")


def small_config(kind: type, decoder: bool, copies: int = 1) -> Any:
    """The default config with few layers, tokens and experts; what a config refuses is left as it was.

    Of every kind of layer `copies` are kept. What a default config leaves open and a published one gives is filled in.
    """
    config = smaller(kind(), copies)
    if hasattr(config, "is_decoder") and not getattr(config, "is_encoder_decoder", False):
        _set(config, "is_decoder", decoder)
    return config


def smaller(config: Any, copies: int) -> Any:
    """The config and its parts with their changes; built anew where each layer has settings of its own."""
    settings = config.to_dict()
    changes = _changes(settings, copies)
    if "per_layer_config" in settings:
        return type(config)(**changes)
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            changes[name] = smaller(part, copies)
            _set(changes[name], "rope_theta", getattr(part, "rope_theta", ROTARY["rope_theta"]))
    for key, value in changes.items():
        _set(config, key, value)
    return config


def _changes(settings: dict[str, Any], copies: int) -> dict[str, Any]:
    kinds = [value for key, value in settings.items() if key in LAYER_KINDS and isinstance(value, list)]
    length = len(kinds[0]) if kinds else 0
    kept = some_of_each([kind for kind in kinds if len(kind) == length], copies)
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, list) and len(value) == length > LAYERS:
            found[key] = [value[layer] for layer in kept]
        elif isinstance(value, list) and key.endswith("layer_ids") and length > LAYERS:
            found[key] = [kept.index(layer) for layer in value if layer in kept]
        if key == "image_size" and isinstance(value, (list, tuple)):
            found[key] = [min(n, SMALL[key]) for n in value]
        if isinstance(value, int) and not isinstance(value, bool) and key in SMALL and value > SMALL[key]:
            found[key] = len(kept) if SMALL[key] == LAYERS and kept else SMALL[key]
    return found | _blanks(settings)


def some_of_each(kinds: list[list[str]], copies: int) -> list[int]:
    """The first layers of every kind, and the next ones up to the number of layers wanted."""
    rows = list(zip(*kinds, strict=True))
    first = [number for number, row in enumerate(rows) if rows[:number].count(row) < copies]
    others = [number for number in range(len(rows)) if number not in first]
    return sorted(first + others[: max(0, LAYERS - len(first))])


def _blanks(settings: dict[str, Any]) -> dict[str, Any]:
    heads, width = settings.get("num_attention_heads"), settings.get("hidden_size")
    derived: dict[str, Any] = {
        "num_key_value_heads": heads,
        "indexer_head_dim": settings.get("head_dim"),
        "pad_token_id": 1 if "token_dropout" in settings else None,
        "default_language": next(iter(settings.get("languages", [])), None),
    }
    if isinstance(heads, int) and isinstance(width, int):
        derived["head_dim"] = width // heads
    found = {key: value for key, value in (BLANK | derived).items() if key in settings and settings[key] is None}
    if settings.get("rope_parameters") == {} and settings.get("layer_types"):
        found["rope_parameters"] = {kind: dict(ROTARY) for kind in settings["layer_types"]}
    return found


def _set(part: Any, key: str, value: Any) -> None:
    try:
        setattr(part, key, value)
    except Exception:
        return


def classes(kind: str) -> list[tuple[type, Any]]:
    import transformers

    mapping = getattr(transformers, KINDS[kind])
    found = []
    for config_class in mapping:
        try:
            models = mapping[config_class]
        except Exception:
            continue
        found.append((config_class, models[0] if isinstance(models, (tuple, list)) else models))
    return found


def class_of(kind: str, number: int) -> tuple[type, Any]:
    """A class and the config that it takes."""
    config_class, model_class = classes(kind)[number]
    return model_class.config_class or config_class, model_class


def places() -> dict[tuple[str, str], int]:
    """Every class by kind and name, in order: its number among its kind."""
    return {(kind, item.__name__): number for kind in KINDS for number, (_, item) in enumerate(classes(kind))}


def narrow(config: Any, factor: float = 1.0) -> Any:
    """Widths and numbers of heads divided alike, down to four heads; the widths of heads stay, and so the ratios."""
    settings = config.to_dict()
    heads = next((settings[key] for key in HEAD_KEYS if isinstance(settings.get(key), int)), 0)
    width = next((settings[key] for key in WIDTH_KEYS if isinstance(settings.get(key), int)), 0)
    own = heads / HEADS if heads else width / (NARROWEST * HEADS)
    factor = own if own > 1.0 and (heads or factor == 1.0) else factor
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            narrow(getattr(config, name), factor)
    for key, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if HEAD_COUNTS.search(key):
            _set(config, key, max(1, int(value / factor)))
        elif WIDTHS.search(key) and value > NARROWEST:
            _set(config, key, max(NARROWEST, MULTIPLE * round(value / factor / MULTIPLE)))
    return config


def with_few_words(config: Any) -> Any:
    """Vocabularies of at most 1,024."""
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            with_few_words(getattr(config, name))
    for key, value in config.to_dict().items():
        if "vocab" in key and isinstance(value, int) and value > VOCABULARY:
            _set(config, key, VOCABULARY)
    return config


def checkable(config_class: type, model_class: Any, decoder: bool) -> Callable[[], Any]:
    """A function that builds a class with weights: few words, and narrow where it would be large."""
    make, size = _smallest(config_class, model_class, decoder, with_few_words, _narrow)
    if size > LARGEST:
        raise UnsupportedError(f"no narrow config: {size} parameters")
    return make


def varied(config_class: type, model_class: Any, decoder: bool) -> Callable[[], Any]:
    """The same class in a setting that no rule was tried on: narrow in any case, weights drawn twice as large."""
    make, size = _smallest(config_class, model_class, decoder, _narrow_and_large)
    if size > LARGE:
        raise UnsupportedError(f"no other setting: {size} parameters")
    return make


def _smallest(
    config_class: type, model_class: Any, decoder: bool, *changes: Callable[[Any], Any]
) -> tuple[Callable[[], Any], int]:
    """The first config, with one copy of each kind of layer or two and each change, that is not large; the smallest
    where all are."""
    reason: Exception | None = None
    found: list[tuple[int, Callable[[], Any]]] = []
    for copies, change in itertools.product((1, 2), changes):
        make = partial(_real, config_class, model_class, decoder, copies, change)
        try:
            size = sum(parameter.numel() for parameter in build(make).parameters())
        except Exception as error:
            reason = error
            continue
        if size <= LARGE:
            return make, size
        found.append((size, make))
    if not found:
        raise UnsupportedError(f"{type(reason).__name__}: {reason}")
    size, make = min(found, key=lambda item: item[0])
    return make, size


def _narrow(config: Any) -> Any:
    return narrow(with_few_words(config))


def _narrow_and_large(config: Any) -> Any:
    return _drawn_larger(_narrow(config))


def _drawn_larger(config: Any) -> Any:
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            _drawn_larger(getattr(config, name))
    for key, value in config.to_dict().items():
        if key in ("initializer_range", "init_std") and isinstance(value, float):
            _set(config, key, 2.0 * value)
    return config


def _real(config_class: type, model_class: Any, decoder: bool, copies: int, change: Callable[[Any], Any]) -> Any:
    config = change(small_config(config_class, decoder, copies))
    config.dtype, config.use_cache = torch.float32, False
    if model_class.__name__.endswith("ImageClassification"):
        config.num_labels = LABELS
    return model_class(config).eval()


def setting_of(kind: str, number: int, other: bool) -> tuple[Any, Any]:
    """A function that builds a class, and a batch; in the `other` setting more tokens."""
    config_class, model_class = class_of(kind, number)
    choose = varied if other else checkable
    make = choose(config_class, model_class, kind == "causal LM")
    return make, batch_of(build(make), MORE_TOKENS if other else TOKENS)


def batch_of(model: Any, tokens: int) -> Any:
    """The made-up batch, with words for labels that have nothing to do with the input."""
    batch = made_up_batch(model, tokens)
    if isinstance(batch.get("labels"), torch.Tensor) and batch["labels"].dim() == 2:
        words = min(VOCABULARY, int(model.config.get_text_config().vocab_size))
        batch["labels"] = zipf_ids(words, tuple(batch["labels"].shape), seed=2)
    return batch


def table_of(measured: dict[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """What was stored of a class, by row and column."""
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for name, *numbers in measured["rows"]:
        columns = ("grad_second_moment",) if name.startswith("parameter ") else ("variance", "grad_variance")
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        table[name] = dict(zip(columns, pairs, strict=False))
    return table
