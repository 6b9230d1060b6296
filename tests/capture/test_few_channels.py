"""The variance of few channels: about their own average, which is not that over networks."""

import pytest
import torch
from torch import nn

from sigprop.capture import build, predict
from sigprop.measurement import measure

X = torch.randn(2, 12, 24, generator=torch.Generator().manual_seed(0)) + 1.0


class Gated(nn.Module):
    """A gate of one channel reads tokens that have much in common."""

    def __init__(self, channels=1, width=64):
        super().__init__()
        self.first, self.gate, self.value = nn.Linear(24, width), nn.Linear(width, channels), nn.Linear(width, width)
        self.branch = nn.Linear(width, width)
        self.out = nn.Identity()

    def forward(self, x):
        x = self.first(x)
        return self.out(x + torch.sigmoid(self.gate(x)).mean(-1, keepdim=True) * self.value(x))


@pytest.mark.parametrize("channels", [1, 4])
def test_a_gate_of_few_channels(channels):
    """With one channel the variance was 60 % too large."""
    measured = measure(None, X, build=lambda: Gated(channels), seeds=200)["gate"]
    predicted = predict(build(lambda: Gated(channels)), X)["gate"]
    for column in ("variance", "grad_variance"):
        assert abs(getattr(predicted, column) - getattr(measured, column)) <= 4.0 * measured.errors[column]


class Shares(nn.Module):
    """Two shares that sum to one: their average never varies."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.scores, self.shares = nn.Linear(24, width), nn.Linear(width, 2), nn.Softmax(-1)

    def forward(self, x):
        return self.shares(self.scores(self.first(x)))


def test_shares_that_sum_to_one():
    measured = measure(None, X, build=Shares, seeds=100)["shares"]
    predicted = predict(build(Shares), X)["shares"]
    assert abs(predicted.variance - measured.variance) <= 4.0 * measured.errors["variance"]
