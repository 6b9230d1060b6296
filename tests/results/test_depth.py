"""One definition of depth for predictions and measurements."""

import torch
from torch import nn

from sigprop.capture import predict
from sigprop.measurement import measure
from sigprop.sites import DepthCounter


def test_blocks_are_counted_and_what_follows_keeps_the_deepest():
    depth = DepthCounter()
    names = ["embedding", "layers.0.mlp", "layers.0", "layers.1.experts.7", "layers.1@2", "norm", "(output)"]
    assert [depth(name) for name in names] == [0, 1, 1, 2, 2, 2, 2]


def test_predicted_and_measured_sites_have_the_same_depth():
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(*blocks), nn.Linear(8, 2))
    batch = torch.randn(5, 4)
    predicted = predict(model, batch, loss="noise")
    measured = measure(model, batch, lambda output, batch: output.square().mean())
    want = {row.name: row.depth for row in measured.sites}
    assert {row.name: row.depth for row in predicted.sites} == want
