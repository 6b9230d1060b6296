"""Vision Transformer: patches as tokens, the encoder blocks of `transformer.py`, mean pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sigprop.errors import require
from sigprop.models.layers import reference
from sigprop.models.transformer import TransformerConfig, final_norm, make_blocks


@dataclass(frozen=True)
class ViTConfig:
    """Shape and choices of a Vision Transformer on square images."""

    image: int = 28
    channels: int = 1
    patch: int = 7
    width: int = 256
    depth: int = 8
    heads: int = 4
    hidden: int | None = None
    classes: int = 10
    norm_placement: str = "pre"
    norm: str = "layer_norm"
    activation: str = "gelu"
    skip_scale: float | Sequence[float] = 1.0
    branch_scale: float | Sequence[float] = 1.0
    learnable_scales: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(self.image % self.patch == 0, "patch", self.patch, f"a divisor of the image size {self.image}")

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2

    def encoder(self) -> TransformerConfig:
        """The same choices as a Transformer encoder over the patches."""
        same = {key: value for key, value in vars(self).items() if key in TransformerConfig.__dataclass_fields__}
        return TransformerConfig(kind="encoder", context=self.tokens, **same)


class ViT(nn.Module):
    """Images (batch, channels, image, image) to class logits."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        encoder = config.encoder()
        self.patch_embedding = nn.Conv2d(config.channels, config.width, config.patch, stride=config.patch)
        self.position_embedding = nn.Embedding(config.tokens, config.width)
        self.blocks = make_blocks(encoder, causal=False)
        self.final_norm = final_norm(encoder)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embedding(images).flatten(2).transpose(1, 2)
        x = x + self.position_embedding(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return self.head(x.mean(dim=1))


@reference("vit", ViTConfig)
def vit(**settings) -> ViT:
    """Build a Vision Transformer from the settings of `ViTConfig`."""
    return ViT(ViTConfig(**settings))
