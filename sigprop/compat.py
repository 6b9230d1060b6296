"""All that is private of other libraries, in one place: what is taken, and what happens when it is gone.

Nothing here is imported before it is needed.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from sigprop.errors import InputError, UnsupportedError

AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModel",
)


def transformers_library() -> Any:
    """The transformers package, or the words that say how to get it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UnsupportedError("a Hugging Face model needs transformers: pip install 'sigprop[hf]'") from error


def model_class(config: Any) -> Any:
    """The class that a config names, else the first auto class that takes it.

    `_model_mapping` of the auto classes is private. Without it only configs that name their architecture are read.
    """
    transformers = transformers_library()
    for name in getattr(config, "architectures", None) or []:
        kind = getattr(transformers, name, None)
        if kind is not None:
            return kind
    for name in AUTO_CLASSES:
        mapping = getattr(getattr(transformers, name, None), "_model_mapping", {})
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    raise InputError(f"no model class of transformers takes a {type(config).__name__}")


def cached_folder(name: str) -> Path:
    """The folder of a hub model that this machine has; nothing is downloaded."""
    transformers_library()
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, local_files_only=True))
    except Exception as error:
        raise InputError(
            f"{name} is neither a folder here nor in the cache: `hf download {name}` fetches it"
        ) from error
