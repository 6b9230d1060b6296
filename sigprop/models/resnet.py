"""Pre-activation residual network (ResNetV2) for small images, with LayerNorm or BatchNorm and strength mu.

    x <- mu shortcut(x) + conv2(relu(norm2(conv1(relu(norm1(x))))))

Three stages of `depth` blocks at widths w, 2w, 4w; depth 18 is ResNet-110. LayerNorm is taken over channels
and pixels of one image, as a group norm with one group. Reference: He et al., Identity Mappings in Deep
Residual Networks, ECCV 2016; residual strength as in Doshi, He, Gromov, NeurIPS 2023, appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from sigprop.errors import require
from sigprop.models.layers import Residual, reference

NORMS = ("layer_norm", "batch_norm")


@dataclass(frozen=True)
class ResNetConfig:
    """Shape and choices of a ResNet; `depth` counts the blocks of one stage."""

    channels: int = 3
    width: int = 16
    depth: int = 18
    classes: int = 10
    norm: str = "batch_norm"
    mu: float = 1.0
    bias: bool = False

    def __post_init__(self) -> None:
        require(self.norm in NORMS, "norm", self.norm, " or ".join(NORMS))
        require(self.depth >= 1, "depth", self.depth, "at least one block in a stage")


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch_norm" else nn.GroupNorm(1, channels)


def _conv(inputs: int, outputs: int, config: ResNetConfig, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=config.bias)


class Block(nn.Module):
    """Two convolutions, each after norm and ReLU; a 1x1 shortcut where the shape changes."""

    def __init__(self, inputs: int, outputs: int, config: ResNetConfig, stride: int = 1):
        super().__init__()
        self.norm1 = _norm(config.norm, inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = _conv(inputs, outputs, config, stride)
        self.norm2 = _norm(config.norm, outputs)
        self.relu2 = nn.ReLU()
        self.conv2 = _conv(outputs, outputs, config)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=config.bias) if changes else None
        self.residual = Residual(skip_scale=config.mu)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.conv2(self.relu2(self.norm2(self.conv1(self.relu1(self.norm1(x))))))
        return self.residual(x if self.shortcut is None else self.shortcut(x), branch)


class ResNet(nn.Module):
    """Images (batch, channels, height, width) to class logits."""

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config = config
        self.stem = _conv(config.channels, config.width, config)
        blocks, inputs = [], config.width
        for stage in range(3):
            outputs = config.width * 2**stage
            for index in range(config.depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Block(inputs, outputs, config, stride))
                inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = _norm(config.norm, inputs)
        self.relu = nn.ReLU()
        self.head = nn.Linear(inputs, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.relu(self.final_norm(x)).mean(dim=(2, 3)))


@reference("resnet", ResNetConfig)
def resnet(**settings) -> ResNet:
    """Build a ResNet from the settings of `ResNetConfig`."""
    return ResNet(ResNetConfig(**settings))
