"""Reference networks by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from torch import nn

from sigprop.errors import UnknownNameError
from sigprop.models.mixer import MixerConfig, mixer
from sigprop.models.mlp import MLPConfig, mlp
from sigprop.models.resnet import ResNetConfig, resnet
from sigprop.models.transformer import TransformerConfig, transformer
from sigprop.models.vit import ViTConfig, vit

REFERENCE: dict[str, Callable[..., nn.Module]] = {
    "mixer": mixer,
    "mlp": mlp,
    "resnet": resnet,
    "transformer": transformer,
    "vit": vit,
}

CONFIGS: dict[str, type] = {
    "mixer": MixerConfig,
    "mlp": MLPConfig,
    "resnet": ResNetConfig,
    "transformer": TransformerConfig,
    "vit": ViTConfig,
}


def build(name: str, **settings) -> nn.Module:
    """Build a reference network; names of networks and settings are checked."""
    if name not in REFERENCE:
        raise UnknownNameError("reference network", name, REFERENCE)
    known = [item.name for item in fields(CONFIGS[name])]
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"setting of {name}", key, known)
    return REFERENCE[name](**settings)
