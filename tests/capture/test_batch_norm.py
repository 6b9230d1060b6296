"""BatchNorm in networks of images: branches that begin at zero."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.capture import build, predict
from sigprop.measurement import measure

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Begun(nn.Module):
    """A residual branch whose last norm has a gain of zero."""

    def __init__(self, width=48):
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, 8)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.relu(x + self.norm(self.inner(torch.relu(x)))).mean((2, 3)))


def test_a_gain_of_zero(agreement):
    """The gradient below it was zero over zero, and no number below a branch had one."""
    found = agreement(Begun, X, training=True, skip=("inner.bias",))
    assert found["inner"].grad_variance == found.parameter("inner.weight").grad_second_moment == 0.0


class Flattened(nn.Module):
    """Few channels of a normalized image, read as one row."""

    def __init__(self, few=2, width=96):
        super().__init__()
        self.stem, self.few = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, few, 1, bias=False)
        self.norm, self.head = nn.BatchNorm2d(few), nn.Linear(few * 36, 24)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.few(torch.relu(self.stem(x))))).flatten(1))


@pytest.mark.parametrize("few", [2, 32])
def test_a_gradient_along_an_image_that_was_flattened(agreement, few):
    """What the loss has of the output is, through the head, along the positions: the norm's bias received 0.14 of what
    it does. The norm takes it out of what lies below, which received 1.2 times too much."""
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    target = torch.randn(8, 24, generator=torch.Generator().manual_seed(1))
    agreement(lambda: Flattened(few), x, lambda out: F.mse_loss(out, target), seeds=64, training=True, skip=("few",))


class Denoised(nn.Module):
    """What is left of an image, with norms of a small gain."""

    def __init__(self, width=96):
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(width), nn.Conv2d(width, 3, 3, padding=1)
        nn.init.constant_(self.norm.weight, 0.05)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.inner(torch.relu(self.first(x))))))


@pytest.mark.parametrize("training", [True, False])
def test_a_small_gain_below_a_squared_error(agreement, training):
    """What the gradient has along the output shrinks with the gain: the gain received many times too much."""
    target = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    skip = ("inner.bias", "last", "(output)")
    agreement(Denoised, X, lambda out: F.mse_loss(out, target), seeds=32, training=training, skip=skip)


class Rectified(nn.Module):
    """A norm behind ReLU, over examples that are nearly one."""

    def __init__(self, width=96):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(24, width), nn.BatchNorm1d(width), nn.Linear(width, 8)

    def forward(self, x):
        return self.head(self.norm(torch.relu(self.first(x))))


def test_channels_that_are_zero_in_all_examples():
    """Nothing is left of them to normalize: the variance behind the norm was 1.4 times too large."""
    x = torch.randn(1, 24, generator=torch.Generator().manual_seed(0))
    x = x + 0.3 * torch.randn(8, 24, generator=torch.Generator().manual_seed(1))
    make = lambda: Rectified().train()  # noqa: E731
    found, real = predict(build(make), x), measure(None, x, build=make, seeds=48)
    for name in ("norm", "head"):
        assert abs(found[name].variance - real[name].variance) < 5.0 * real[name].errors["variance"]
    gain, known = (item.parameter("norm.weight") for item in (found, real))
    assert abs(gain.grad_second_moment - known.grad_second_moment) < 5.0 * known.errors["grad_second_moment"]
    assert found.parameter("first.weight").status == "assumed"  # channels of which next to nothing is left
