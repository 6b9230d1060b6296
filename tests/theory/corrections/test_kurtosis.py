"""Channels that are not Gaussian together, against draws of them and against networks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict
from sigprop.measurement import measure
from sigprop.theory import activations
from sigprop.theory.corrections import kurtosis
from sigprop.theory.kernels import Dense

CHANNELS, ENTRIES, POSITIONS = 400_000, 27, 12
IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def windows(generator):
    return torch.randn(POSITIONS, ENTRIES, dtype=torch.float64, generator=generator) / ENTRIES**0.5


def uniform(generator):
    return (torch.rand(ENTRIES, CHANNELS, dtype=torch.float64, generator=generator) - 0.5) * 12**0.5, -1.2


def of_one_length(generator):
    made = torch.randn(ENTRIES, CHANNELS, dtype=torch.float64, generator=generator)
    return made / made.square().mean(0).sqrt(), -2.0 * ENTRIES / (ENTRIES + 2)


@pytest.mark.parametrize("weights", [uniform, of_one_length])
def test_squares_of_sums_of_few_weights(weights):
    """On average over pairs: that of each pair depends on how its windows overlap."""
    generator = torch.Generator().manual_seed(0)
    rows, (drawn, tails) = windows(generator), weights(generator)
    kernel, squares = Dense(rows @ rows.T), (rows @ drawn).square()
    told = kurtosis.of_weights(tails, ENTRIES, kernel, kernel)
    assert told is not None
    level = kernel.diagonal
    actual = (torch.cov(squares) - 2.0 * kernel.values**2) / (level[:, None] * level)
    assert float(told.mean()) == pytest.approx(float(actual.mean()), rel=0.1)


@pytest.mark.parametrize("name", ["relu", "silu", "gelu"])
def test_sums_of_functions_of_normalized_channels(name):
    """The variance of the sum over a quarter of the positions that a norm is over, as of one image of four."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(200, 60, dtype=torch.float64, generator=generator)
    x = root @ torch.randn(60, 4000, dtype=torch.float64, generator=generator)
    x = x - x.mean(0)
    unit = (root - root.mean(0)) @ (root - root.mean(0)).T
    unit = unit / unit.diagonal().mean()
    function = activations.get(name)
    actual = function(x / x.square().mean(0).sqrt())[:50].mean(0).var()
    zero, level = torch.zeros(200, dtype=torch.float64), unit.diagonal()
    pairs = (level[:, None], level[None], unit, zero[:, None], zero[None])
    mean = function.mean(level, zero)
    gaussian = function.cross_moment(*pairs) - mean[:, None] * mean
    told = gaussian + kurtosis.of_distinct(function, Dense(unit), zero, kurtosis.over_batch(unit, None))
    one = slice(50), slice(50)
    assert float(gaussian[one].mean()) > 1.1 * float(actual)
    assert float(told[one].mean()) == pytest.approx(float(actual), rel=0.05)


def block(inputs, width, stride, act):
    return nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), act()


@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU])
def test_a_pool_behind_batch_norm_and_a_function(act):
    """Its variance was 1.9 times too large, that of SiLU without a mark."""

    def make():
        return nn.Sequential(*block(3, 32, 2, act), *block(32, 48, 1, act), nn.AdaptiveAvgPool2d(1))

    _agrees(make, "6", "variance")


def test_a_pool_behind_a_norm_of_each_channel_of_an_image():
    """Every image has the sums that the norm gave it: the variance was ten times too large."""

    def make():
        return nn.Sequential(nn.Conv2d(3, 40, 3, 2, 1), nn.InstanceNorm2d(40), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

    _agrees(make, "3", "variance")


class Wave(nn.Module):
    """Two maps of given numbers of 9 entries, with a norm over the batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*block(1, 24, 1, nn.ReLU), nn.Conv2d(24, 8, 3))

    def forward(self, x):
        return F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1)


@pytest.mark.parametrize("column", ["grad_variance"])
def test_the_inverse_of_a_norm_over_sums_of_few_weights(column):
    """Uniform weights vary less in length: gradients were 1.2 times too large."""
    _agrees(Wave, "layers.0", column, IMAGES[:, :1])


def _agrees(make, name, column, batch=IMAGES):
    told = predict(build(lambda: make().train()), batch, loss="noise")[name]
    actual = measure(None, batch, "noise", build=lambda: make().train(), seeds=64)[name]
    value = getattr(actual, column)
    assert getattr(told, column) == pytest.approx(value, abs=4.0 * actual.errors[column] + 0.03 * value)
