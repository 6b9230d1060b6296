"""Choices that depend on values: each is the activation it spells out, or agrees with simulation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict

X = torch.randn(6, 24, generator=torch.Generator().manual_seed(0)) + 0.3
TARGET = torch.randint(8, (6,), generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Two linear maps of one input, a function of both, and a readout."""

    def __init__(self, function, width=96):
        super().__init__()
        self.first, self.second = nn.Linear(24, width), nn.Linear(24, width)
        self.inside, self.readout = nn.Linear(width, width), nn.Linear(width, 8)
        self.act = Act(function)

    def forward(self, x):
        return self.readout(self.inside(self.act(self.first(x), self.second(x))))


class Act(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


SPELT_OUT = {
    "where": (lambda x, _: torch.where(x > 0, x, 0.1 * x), lambda x, _: F.leaky_relu(x, 0.1)),
    "where as a method": (lambda x, _: x.where(x > 0, 0.1 * x), lambda x, _: F.leaky_relu(x, 0.1)),
    "masked_fill": (lambda x, _: x.masked_fill(x <= 0, 0.0), lambda x, _: F.relu(x)),
    "a mask that multiplies": (lambda x, _: x * (x > 0), lambda x, _: F.relu(x)),
    "maximum": (lambda x, _: torch.maximum(x, 0.1 * x), lambda x, _: F.leaky_relu(x, 0.1)),
}


@pytest.mark.parametrize("name", SPELT_OUT)
def test_a_choice_is_the_activation_it_spells_out(name):
    spelt, plain = (predict(build(lambda f=f: Net(f)), X) for f in SPELT_OUT[name])
    for mine, other in zip(spelt.sites, plain.sites, strict=True):
        assert mine.status != "sampled"
        for column in ("mean", "variance", "token_correlation", "grad_variance"):
            assert getattr(mine, column) == pytest.approx(getattr(other, column), rel=1e-3, abs=1e-6, nan_ok=True), (
                mine.name
            )


TWO = {
    "another tensor chooses": lambda x, y: torch.where(y > 0, x, 0.5 * x),
    "two tensors compared": lambda x, y: torch.where(x > y, x, y * y),
    "a mask of another tensor": lambda x, y: (y > 0.1) * x * y,
}


@pytest.mark.parametrize("name", TWO)
def test_choices_between_two_tensors(agreement, name):
    agreement(lambda: Net(TWO[name]), X, lambda out: F.cross_entropy(out, TARGET), seeds=32)


def test_one_draw_for_every_choice_would_be_wrong():
    """The mean of `where(x > 0, x, 0)` is that of a ReLU, not zero."""
    row = next(s for s in predict(build(lambda: Net(SPELT_OUT["where"][0])), X).sites if s.name == "act")
    assert row.mean > 0.1 * row.variance**0.5


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out, self.readout = nn.Linear(24, 32), nn.Identity(), nn.Linear(32, 8)

    def forward(self, x):
        x = self.first(x)
        return self.readout(self.out(x + torch.fft.fftn(x, dim=(0, 1)).real))


def test_a_fourier_transform_is_marked():
    """It mirrors channels, which independent channels do not show."""
    row = next(row for row in predict(build(Fourier), X).sites if row.name == "out")
    assert row.status == "assumed"
    assert "Fourier" in row.reason


class Delayed(nn.Module):
    """Tokens from a delay that is chosen for each sequence (Autoformer), with what an index over heads, tokens and
    channels picks."""

    def __init__(self, width=32):
        super().__init__()
        self.table, self.value, self.out = nn.Embedding(10, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.delay = nn.LayerNorm(width), nn.Linear(width, 6)

    def forward(self, ids):
        x = self.table(ids)
        value = self.value(x).unflatten(-1, (4, -1)).transpose(1, 2).flatten(0, 1)
        length, width = value.shape[1:]
        best = self.delay(x).mean(1).topk(1, -1).indices[:, 0]
        places = torch.arange(length).view(1, -1, 1) + best.view(-1, 1, 1).repeat(4, length, width)
        seen = torch.gather(value.repeat(1, 2, 1), 1, places)
        seen = seen.view(len(ids), 4, length, width).transpose(1, 2).flatten(2)
        return self.norm(x + self.out(seen)).mean(1)


def test_tokens_at_a_chosen_delay_are_tokens(agreement):
    """They were channels, independent of each other: maps of them received a sixth."""
    agreement(
        Delayed, torch.arange(12).view(2, 6) % 10, "noise", seeds=48, skip=("delay", "delay.weight", "delay.bias")
    )
