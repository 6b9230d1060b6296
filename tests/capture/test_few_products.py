"""Convolutions of each channel by itself: functions and norms over the batch of them are drawn."""

import pytest
import torch
from torch import nn

from sigprop.capture import build, predict

X = 3.0 * torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Depthwise(nn.Module):
    def __init__(self, std=0.5, width=96):
        super().__init__()
        self.stem, self.up = nn.Conv2d(3, width, 1), nn.Conv2d(width, width, 1)
        self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.last = nn.Conv2d(width, 8, 1)
        nn.init.normal_(self.depth.weight, std=std)
        nn.init.zeros_(self.depth.bias)

    def forward(self, x):
        hidden = nn.functional.gelu(self.depth(self.up(self.stem(x))))
        return self.last(hidden.mean((2, 3), keepdim=True))


@pytest.mark.parametrize("std", [0.5, 0.02])
def test_weights_of_a_depthwise_convolution(agreement, std):
    """With a pooled loss its gradient was four times too large, and half as large below, both called exact."""
    found = agreement(lambda: Depthwise(std), X, seeds=48)
    assert all(row.status != "assumed" for row in (*found.sites, *found.parameters))


class Inverted(nn.Module):
    """A block of MobileNet or ConvMixer: BatchNorm in front of the function or behind it."""

    def __init__(self, behind, width=64):
        super().__init__()
        self.expand, self.first = nn.Conv2d(32, width, 1), nn.BatchNorm2d(width)
        self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.norm, self.project, self.behind = nn.BatchNorm2d(width), nn.Conv2d(width, 8, 1), behind

    def forward(self, x):
        x = self.depth(nn.functional.silu(self.first(self.expand(x))))
        x = self.norm(nn.functional.silu(x)) if self.behind else nn.functional.silu(self.norm(x))
        return self.project(x)


@pytest.mark.parametrize("behind", [True, False])
def test_a_depthwise_convolution_and_batch_norm(agreement, behind):
    """Every channel has a kernel of its own: the gain of the first norm received 16 times too much in MBConv, and
    gradients were 0.6 of what they are."""
    x = torch.randn(4, 32, 4, 4, generator=torch.Generator().manual_seed(1))
    found = agreement(lambda: Inverted(behind), x, seeds=64, training=True)
    assert all(row.status != "assumed" for row in (*found.sites, *found.parameters))


def test_small_groups_under_a_squared_loss():
    """What is along the signal is lost in a norm that is sampled: gradients were up to 57 % too large."""

    def make():
        block = [nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(32, 64), nn.ReLU()]
        return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *block, nn.Conv2d(64, 8, 1))

    rows = predict(build(make), X, loss=lambda out: out.square().mean())
    assert rows.parameter("1.weight").status == "assumed"
    assert rows.parameter("4.weight").status != "assumed"
    assert predict(build(make), X).parameter("1.weight").status != "assumed"


class DepthwiseUnderNorm(nn.Module):
    """A block of ConvNeXt, at a size where a window sees the whole image."""

    def __init__(self):
        super().__init__()
        self.start, self.depth = nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 5, padding=2, groups=64, bias=False)
        self.norm, self.wide, self.back = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 8)

    def forward(self, x):
        x = self.norm(self.depth(self.start(x)).permute(0, 2, 3, 1))
        return self.back(torch.nn.functional.gelu(self.wide(x))).mean((1, 2))


def test_a_depthwise_convolution_under_a_norm_of_all_channels(agreement):
    """Each channel was taken to make the norm: its weights' gradients were half as large in ConvNeXt's last stage."""
    agreement(DepthwiseUnderNorm, torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(3)), seeds=48)
