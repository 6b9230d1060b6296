"""Sites that replays pass on the way to deeper sources: their gradients are counted although no node sends them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

X = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(8, (12,), generator=torch.Generator().manual_seed(1))


class Joined(nn.Module):
    """A normalized tensor and its square one after the other, which are drawn together; and a path of its own."""

    def __init__(self, also=False, width=128):
        super().__init__()
        self.first, self.norm, self.middle = nn.Linear(24, width), nn.LayerNorm(width), nn.Identity()
        self.after, self.side, self.readout = nn.Identity(), nn.Linear(width, 8), nn.Linear(width, 8)
        self.also = also

    def forward(self, x):
        middle = self.middle(self.norm(self.first(x)))
        joined = self.after(torch.cat((middle, middle**2), 0))
        out = self.readout(joined)
        return out + self.side(middle).repeat(2, 1) if self.also else out


def test_a_site_on_the_way_of_a_replay(agreement):
    predicted = agreement(
        Joined, X, lambda out: F.cross_entropy(out, TARGET), seeds=48, skip=("side.weight", "side.bias")
    )
    row = next(row for row in predicted.sites if row.name == "middle")
    assert row.grad_variance > 0.0


def test_what_passes_is_added_to_what_arrives():
    """The square's share of the gradient alone is too little where the tensor is also read by a weight of its own."""
    from sigprop.capture import build, predict
    from sigprop.measurement import measure

    loss = lambda out: F.cross_entropy(out, TARGET)  # noqa: E731
    make = lambda: Joined(also=True)  # noqa: E731
    row = next(row for row in predict(build(make), X, loss=loss).sites if row.name == "middle")
    seen = next(row for row in measure(None, X, loss, build=make, seeds=64).sites if row.name == "middle")
    assert abs(row.grad_variance - seen.grad_variance) < 5.0 * seen.errors["grad_variance"]


class Again(nn.Module):
    """A function of an activation, which is a site, and maybe a path of its own."""

    def __init__(self, function, also=False, width=128):
        super().__init__()
        self.first, self.active, self.function = nn.Linear(24, width), nn.ReLU(), function
        self.middle, self.side, self.readout = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 8)
        self.also = also

    def forward(self, x):
        y = self.active(self.first(x))
        z = self.middle(self.function(y))
        return self.readout(z + self.side(y) if self.also else z)


@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("function", [torch.relu, lambda y: y * torch.tanh(2.0 * y.view(6, -1))], ids=["relu", "gated"])
def test_a_site_that_a_function_is_a_function_of(agreement, function, also):
    """Both are followed as functions of what is below: the site had no gradient, or only that of the other path."""
    skip = () if also else ("side", "side.weight", "side.bias")
    found = agreement(
        lambda: Again(function, also), X, lambda out: F.cross_entropy(out, TARGET[:6]), seeds=48, skip=skip
    )
    assert found["active"].grad_variance > 0.0


def test_a_function_of_many_positions_that_only_a_pool_reads(agreement):
    """More positions than a site between may have: a function of what is followed anyway has its row."""

    def make():
        layers = [nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 48, 3, stride=2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 9, 10))

    images = torch.randn(4, 3, 17, 17, generator=torch.Generator().manual_seed(0))
    found = agreement(make, images, lambda out: F.cross_entropy(out, torch.arange(4)), seeds=24, width=30)
    assert found["1"].variance > 0.0
    assert found["1"].grad_variance > 0.0
