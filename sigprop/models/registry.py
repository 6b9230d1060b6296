"""Reference networks by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sigprop.errors import UnknownNameError, require_settings
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
    require_settings(CONFIGS[name], settings, name)
    return REFERENCE[name](**settings)
