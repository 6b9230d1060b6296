"""MLP-Mixer: alternating mlps over patches and over channels, with LayerNorm and residual strength mu.

    x <- mu x + token_mlp(norm(x)^T)^T,    x <- mu x + channel_mlp(norm(x))

Reference: Tolstikhin et al., MLP-Mixer; residual strength as in Doshi, He, Gromov, appendix H.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from sigprop.errors import require
from sigprop.models.layers import Residual, activation, reference


@dataclass(frozen=True)
class MixerConfig:
    """Shape and choices of an MLP-Mixer on square images; hidden widths default to twice and four times."""

    image: int = 32
    channels: int = 3
    patch: int = 4
    width: int = 128
    depth: int = 30
    token_hidden: int = 256
    channel_hidden: int = 512
    classes: int = 10
    activation: str = "gelu"
    mu: float = 1.0

    def __post_init__(self) -> None:
        require(self.image % self.patch == 0, "patch", self.patch, f"a divisor of the image size {self.image}")


class FeedForward(nn.Module):
    """`down(phi(up(x)))` over the last axis."""

    def __init__(self, size: int, hidden: int, activation_name: str):
        super().__init__()
        self.up = nn.Linear(size, hidden)
        self.activation = activation(activation_name)
        self.down = nn.Linear(hidden, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Mixing over tokens, then over channels; `x` is (batch, tokens, width)."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        tokens = (config.image // config.patch) ** 2
        self.token_norm = nn.LayerNorm(config.width)
        self.token_mlp = FeedForward(tokens, config.token_hidden, config.activation)
        self.token_residual = Residual(skip_scale=config.mu)
        self.channel_norm = nn.LayerNorm(config.width)
        self.channel_mlp = FeedForward(config.width, config.channel_hidden, config.activation)
        self.channel_residual = Residual(skip_scale=config.mu)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.token_mlp(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        x = self.token_residual(x, mixed)
        return self.channel_residual(x, self.channel_mlp(self.channel_norm(x)))


class Mixer(nn.Module):
    """Images (batch, channels, image, image) to class logits."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Conv2d(config.channels, config.width, config.patch, stride=config.patch)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embedding(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x).mean(dim=1))


@reference("mixer", MixerConfig)
def mixer(**settings) -> Mixer:
    """Build an MLP-Mixer from the settings of `MixerConfig`."""
    return Mixer(MixerConfig(**settings))
