"""Reference networks in plain PyTorch, with text and image loaders to feed them.

`build("vit", depth=12, patch=4)` makes one by name; `REFERENCE` lists the builders and their settings.
"""

from __future__ import annotations

from sigprop.models.data import decode, encode, load_idx, load_text, normalized_images, sample_text, text_batch
from sigprop.models.layers import REFERENCE, build, initialize_, reference
from sigprop.models.mixer import Mixer, MixerConfig, mixer
from sigprop.models.mlp import MLP, MLPConfig, mlp
from sigprop.models.resnet import ResNet, ResNetConfig, resnet
from sigprop.models.transformer import EncoderDecoder, Transformer, TransformerConfig, transformer
from sigprop.models.vit import ViT, ViTConfig, vit

__all__ = [
    "MLP",
    "REFERENCE",
    "EncoderDecoder",
    "MLPConfig",
    "Mixer",
    "MixerConfig",
    "ResNet",
    "ResNetConfig",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "build",
    "decode",
    "encode",
    "initialize_",
    "load_idx",
    "load_text",
    "mixer",
    "mlp",
    "normalized_images",
    "reference",
    "resnet",
    "sample_text",
    "text_batch",
    "transformer",
    "vit",
]
