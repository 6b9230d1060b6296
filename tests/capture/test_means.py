"""Biases and weights that have a mean: carried by every op, forward and backward."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as logits_loss

from sigprop.capture import build, predict

IMAGE = torch.randn(3, 16, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))


def with_constants(*layers, bias=0.0, weight=0.0):
    """Biases that are one number; weights `N(weight, 1/fan_in)` where they have a mean."""
    model = nn.Sequential(*layers)
    for layer in model:
        if getattr(layer, "bias", None) is not None:
            nn.init.constant_(layer.bias, bias)
        if weight and isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, weight, layer.in_features**-0.5)
    return model


def convolutions(bias, norm: Callable[[int], nn.Module] = nn.Identity, width=128):
    layers = (nn.Conv2d(16, width, 3, padding=1), norm(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
    return with_constants(*layers, norm(width), nn.ReLU(), nn.Conv2d(width, 32, 3, padding=1), bias=bias)


def perceptron(bias, norm: Callable[[int], nn.Module] = nn.LayerNorm, weight=0.0, width=128):
    blocks = [layer for _ in range(3) for layer in (norm(width), nn.ReLU(), nn.Linear(width, width))]
    return with_constants(nn.Linear(32, width), *blocks, bias=bias, weight=weight)


class Detector(nn.Module):
    """A detection head: the bias of its class scores says that objects are rare."""

    def __init__(self, width=64, classes=20):
        super().__init__()
        self.stem, self.tower = nn.Conv2d(16, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.scores, self.out = nn.Conv2d(width, classes, 3, padding=1), nn.Identity()
        nn.init.normal_(self.scores.weight, std=0.01)
        nn.init.constant_(self.scores.bias, -4.6)

    def forward(self, x):
        return self.out(self.scores(self.tower(self.stem(x).relu()).relu()))


TARGET = (torch.rand(3, 20, 8, 8, generator=torch.Generator().manual_seed(3)) < 0.02).float()
MODELS = {
    "positive biases": (lambda: convolutions(0.5), IMAGE),
    "negative biases": (lambda: convolutions(-0.1), IMAGE),
    "batch norm": (lambda: convolutions(0.4, nn.BatchNorm2d), IMAGE),
    "group norm": (lambda: convolutions(-0.5, lambda width: nn.GroupNorm(2, width)), IMAGE),
    "layer norm above": (lambda: perceptron(1.0), ROWS),
    "layer norm below": (lambda: perceptron(-1.0), ROWS),
    "weights with a mean": (lambda: perceptron(0.0, nn.Identity, 0.05), ROWS),
    "normed weights with a mean": (lambda: perceptron(0.0, nn.LayerNorm, 0.05), ROWS),
}


@pytest.mark.parametrize("name", MODELS)
def test_means_are_carried(agreement, name):
    """Gradients were up to 10 times too large, 0.2 times too small, none of them marked."""
    make, batch = MODELS[name]
    agreement(make, batch, seeds=24, training=True, width=24)


def test_the_head_of_a_detector(agreement):
    """Its gradient was 3,573 times too large."""
    agreement(Detector, IMAGE, lambda out: logits_loss(out, TARGET), seeds=48)


def test_positive_weights_below_a_norm_are_right_forward_and_marked_backward():
    """What a norm removes of a gradient along all ones is not followed."""
    made = predict(build(lambda: perceptron(0.5, nn.LayerNorm, 0.2)), ROWS)
    gradients = [row for row in made.parameters if row.name == "0.weight"]
    assert gradients[0].status == "assumed"
    assert "along all ones" in gradients[0].reason


def test_a_hidden_layer_with_a_mean(agreement):
    def make():
        model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8))
        nn.init.normal_(model[1].weight, mean=0.1, std=0.1)
        return model

    agreement(make, ROWS, seeds=96)
