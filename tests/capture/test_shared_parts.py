"""Tensors that are added more than once, and entries that are gathered where they were chosen."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict
from sigprop.measurement import measure

X = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(8, (6,), generator=torch.Generator().manual_seed(1))


def loss(out):
    return F.cross_entropy(out, TARGET)


class Injected(nn.Module):
    """The first tensor is added again after every block, before or after a norm."""

    def __init__(self, norm=False, width=128):
        super().__init__()
        self.first, self.readout = nn.Linear(24, width), nn.Linear(width, 8)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.RMSNorm(width) if norm else nn.Identity() for _ in range(3))
        self.outs = nn.ModuleList(nn.Identity() for _ in range(3))
        self.extra, self.given = nn.Linear(24, width), nn.Identity()

    def forward(self, x):
        given = self.given(self.first(x) + self.extra(x))
        found = given
        for block, norm, out in zip(self.blocks, self.norms, self.outs, strict=True):
            found = out(norm(found + block(found).tanh()) + 0.5 * given)
        return self.readout(found)


@pytest.mark.parametrize("norm", [False, True])
def test_an_input_added_again(agreement, norm):
    """Also its own gradient, which comes along several paths in step."""
    agreement(lambda: Injected(norm), X, loss, seeds=48, skip=("blocks.0.weight", "blocks.0.bias") if norm else ())


def test_a_branch_with_weights_of_its_own_is_not_a_part_in_common():
    made = predict(build(lambda: nn.Sequential(nn.Linear(24, 64), Skip(64), Skip(64), nn.Linear(64, 8))), X)
    assert all("added before" not in row.reason for row in made.sites)


class Skip(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inside = nn.Linear(width, width)

    def forward(self, x):
        return x + self.inside(x.relu())


class Routed(nn.Module):
    """The largest probability, read by the index of the largest score, weighs a branch."""

    def __init__(self, read, width=96):
        super().__init__()
        self.scores, self.value, self.readout = nn.Linear(24, 12), nn.Linear(24, width), nn.Linear(width, 8)
        nn.init.normal_(self.scores.weight, std=0.4)
        self.read, self.out = read, nn.Identity()

    def forward(self, x):
        return self.readout(self.out(self.read(self.scores(x)) * self.value(x)))


READ = {
    "max": lambda s: s.softmax(-1).gather(-1, s.max(-1, keepdim=True)[1]),
    "topk": lambda s: s.sigmoid().gather(-1, s.topk(3, -1)[1]).sum(-1, keepdim=True),
}


@pytest.mark.parametrize("name", READ)
def test_gathered_entries_are_the_chosen_ones(agreement, name):
    agreement(lambda: Routed(READ[name]), X, loss, seeds=96)


class Reused(nn.Module):
    """A factor of a product that comes back as a function of itself, as the step of a state-space model does."""

    def __init__(self, width=96):
        super().__init__()
        self.step, self.value, self.readout = nn.Linear(24, width), nn.Linear(24, width), nn.Linear(width, 8)
        self.out = nn.Identity()

    def forward(self, x):
        step = self.step(x)
        return self.readout(self.out((step * self.value(x)) * torch.sigmoid(4.0 * step)))


def test_a_product_remembers_its_factors(agreement):
    agreement(Reused, X, loss, seeds=64)


class Written(nn.Module):
    """A table of positions written into a tensor that was not initialized."""

    def __init__(self, width=96):
        super().__init__()
        self.table = nn.Parameter(torch.empty(6, width))
        nn.init.normal_(self.table)
        self.first, self.readout, self.out = nn.Linear(24, width), nn.Linear(width, 8), nn.Identity()

    def forward(self, x):
        places = torch.empty(self.table.shape, device=self.table.device)
        places[:4] = 2.0 * self.table[:4]
        places[4:] = self.table[4:5]
        return self.readout(self.out(self.first(x) + places))


def test_a_parameter_written_into_a_tensor(agreement):
    agreement(Written, X, loss, seeds=48, skip=("table",))


class SideBySide(nn.Module):
    """Two streams that begin with one tensor, one after the other, and tokens that are averaged."""

    def __init__(self, width=96):
        super().__init__()
        self.first, self.readout, self.out = nn.Linear(24, width), nn.Linear(width, 8), nn.Identity()
        self.shift, self.pooled = nn.Parameter(torch.randn(width)), nn.Identity()

    def forward(self, x):
        x = self.first(x)
        both = self.out(torch.cat([x, 0.5 * x + self.shift]))
        return self.readout(self.pooled(both.mean(0, keepdim=True)))


def test_what_stands_side_by_side_has_its_parts_in_common(agreement):
    """The average of both was 40 % too small."""
    agreement(SideBySide, X, seeds=64)


class Less(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = (x + layer(x)) - torch.relu(x)
        return x


def test_sums_of_the_raw_input_and_functions_of_it():
    """Given numbers that meet become positions of one table, and the sum that holds them holds other rows of it."""
    x = torch.randn(16, 96, generator=torch.Generator().manual_seed(0))
    row = predict(build(Less), x, loss="noise")["(output)"]
    real = measure(None, x, "noise", build=Less, seeds=64)["(output)"]
    told = row.stated_errors.get("variance", math.inf) * row.variance
    assert abs(row.variance - real.variance) < told + 4.0 * real.errors["variance"]
