"""A U-Net with the parts and the sizes of diffusers' `UNet2DModel` by default, which is no dependency.

64 x 64 latents, widths 224 to 896, two residual blocks a level (three on the way up), attention on all levels but the
first: 274 million parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS, HEAD, EPSILON = 32, 8, 1e-5


class Residual(nn.Module):
    """Norm, SiLU, convolution, twice; the time is added between."""

    def __init__(self, inputs: int, outputs: int, time: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inputs, EPSILON)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2 = nn.GroupNorm(GROUPS, outputs, EPSILON)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        made = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(made)))


class Attention(nn.Module):
    """Of all pixels to all pixels, heads of eight channels."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, EPSILON)
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, side = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        heads = (m(tokens).unflatten(-1, (-1, HEAD)).transpose(1, 2) for m in (self.to_q, self.to_k, self.to_v))
        made = self.to_out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + made.transpose(1, 2).reshape(batch, width, height, side)


class Level(nn.Module):
    """Residual blocks, each with attention behind it where there is any."""

    def __init__(self, pairs: Sequence[tuple[int, int]], time: int, attends: bool):
        super().__init__()
        self.resnets = nn.ModuleList(Residual(inputs, outputs, time) for inputs, outputs in pairs)
        self.attentions = nn.ModuleList(Attention(outputs) if attends else nn.Identity() for _, outputs in pairs)


class UNet(nn.Module):
    def __init__(self, channels: int = 3, widths: Sequence[int] = (224, 448, 672, 896), blocks: int = 2):
        super().__init__()
        time, last = 4 * widths[0], widths[-1]
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.conv_in = nn.Conv2d(channels, widths[0], 3, padding=1)
        kept, before = [widths[0]], widths[0]
        self.down, self.downsamplers = nn.ModuleList(), nn.ModuleList()
        for number, width in enumerate(widths):
            self.down.append(Level([(before, width), *[(width, width)] * (blocks - 1)], time, number > 0))
            kept += [width] * blocks
            if number < len(widths) - 1:
                self.downsamplers.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                kept.append(width)
            before = width
        self.middle = Level([(last, last), (last, last)], time, attends=False)
        self.attention = Attention(last)
        self.up, self.upsamplers = nn.ModuleList(), nn.ModuleList()
        for number, width in reversed(list(enumerate(widths))):
            pairs = [((before if place == 0 else width) + kept.pop(), width) for place in range(blocks + 1)]
            self.up.append(Level(pairs, time, number > 0))
            if number:
                self.upsamplers.append(nn.Conv2d(width, width, 3, padding=1))
            before = width
        self.norm_out = nn.GroupNorm(GROUPS, widths[0], EPSILON)
        self.conv_out = nn.Conv2d(widths[0], channels, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        half = self.time[0].in_features // 2
        angles = timestep[:, None] * torch.exp(-math.log(1e4) * torch.arange(half, device=sample.device) / half)
        time = self.time(torch.cat((angles.cos(), angles.sin()), -1))
        x = self.conv_in(sample)
        kept = [x]
        for number, level in enumerate(self.down):
            for resnet, attention in zip(level.resnets, level.attentions, strict=True):
                x = attention(resnet(x, time))
                kept.append(x)
            if number < len(self.downsamplers):
                x = self.downsamplers[number](x)
                kept.append(x)
        first, second = self.middle.resnets
        x = second(self.attention(first(x, time)), time)
        for number, level in enumerate(self.up):
            for resnet, attention in zip(level.resnets, level.attentions, strict=True):
                x = attention(resnet(torch.cat((x, kept.pop()), 1), time))
            if number < len(self.upsamplers):
                x = self.upsamplers[number](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv_out(F.silu(self.norm_out(x)))


def latents(side: int = 64, channels: int = 3) -> dict[str, Tensor]:
    """One noisy latent and its time."""
    noise = torch.randn(1, channels, side, side, generator=torch.Generator().manual_seed(0))
    return {"sample": noise, "timestep": torch.tensor([500.0])}
