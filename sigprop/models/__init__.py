"""Reference networks in plain PyTorch, with text and image loaders to feed them.

`build("vit", depth=12, patch=4)` makes one by name; `REFERENCE` lists the builders and their settings.
"""

from __future__ import annotations

from sigprop.models.data import decode, encode, load_idx, load_text, normalized_images, sample_text, text_batch
from sigprop.models.layers import REFERENCE, build, initialize_
from sigprop.models.mixer import mixer
from sigprop.models.mlp import mlp
from sigprop.models.resnet import resnet
from sigprop.models.transformer import transformer
from sigprop.models.vit import vit

__all__ = [
    "REFERENCE",
    "build",
    "decode",
    "encode",
    "initialize_",
    "load_idx",
    "load_text",
    "mixer",
    "mlp",
    "normalized_images",
    "resnet",
    "sample_text",
    "text_batch",
    "transformer",
    "vit",
]
