"""Layers drawn by one rule tell the law of the small ones among them."""

import math

import pytest
import torch
from torch import nn

from sigprop.distributions import distribution, skeleton_of

SHAPES = [(16, 1), (32, 32), (64, 32), (96, 96), (128, 64)]


def layers(std):
    model = nn.ModuleList(nn.Conv2d(width, width, 3, groups=width // fan) for width, fan in SHAPES)
    for module in model:
        nn.init.normal_(module.weight, 0.0, std(module))
    return model


RULES = {
    "fan-out": lambda m: math.sqrt(2 / (m.out_channels * 9)),
    "fan-out of a group": lambda m: math.sqrt(2 / (m.out_channels * 9 / m.groups)),
    "fan-in": lambda m: math.sqrt(2 / (m.in_channels / m.groups * 9)),
    "constant": lambda m: 0.02,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_small_filter_has_the_law_of_its_siblings(rule):
    errors = []
    for seed in range(10):
        torch.manual_seed(seed)
        model = layers(RULES[rule])
        found = distribution(skeleton_of(model)[0].weight).variance
        errors.append(found / RULES[rule](model[0]) ** 2 - 1)
    assert max(map(abs, errors)) < 0.05


def test_layers_drawn_by_different_rules_are_left_alone():
    torch.manual_seed(0)
    model = layers(RULES["constant"])
    nn.init.normal_(model[0].weight, 0.0, 0.3)
    nn.init.normal_(model[3].weight, 0.0, 0.1)
    own = model[0].weight.detach().double().square().mean()
    assert distribution(skeleton_of(model)[0].weight).second_moment == pytest.approx(float(own), rel=1e-5)
