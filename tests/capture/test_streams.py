"""Residual streams side by side (hyper-connections): the entries of an outer product share its factors."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict
from sigprop.measurement import measure

X = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(8, (6,), generator=torch.Generator().manual_seed(1))


class Mixed(nn.Module):
    """Streams that are mixed by weights of their own input, fed by a branch, and collapsed again."""

    def __init__(self, width, streams):
        super().__init__()
        self.weights = nn.Linear(width, 2 * streams + streams**2)
        self.branch, self.streams = nn.Linear(width, width), streams

    def forward(self, streams):
        collapsed = streams.mean(1)
        sizes = [self.streams, self.streams, self.streams**2]
        pre, post, mix = self.weights(collapsed).split(sizes, dim=-1)
        mix = mix.unflatten(-1, (self.streams, self.streams)).softmax(-1)
        inside = self.branch((pre.sigmoid().unsqueeze(-1) * streams).sum(1))
        return post.sigmoid().unsqueeze(-1) * inside.unsqueeze(-2) + mix @ streams


class Streams(nn.Module):
    def __init__(self, width=128, streams=4):
        super().__init__()
        self.first, self.readout = nn.Linear(24, width), nn.Linear(width, 8)
        self.blocks = nn.ModuleList(Mixed(width, streams) for _ in range(2))
        self.streams = streams

    def forward(self, x):
        found = self.first(x).unsqueeze(1).expand(-1, self.streams, -1)
        for block in self.blocks:
            found = block(found)
        return self.readout(found.mean(1))


def test_streams_that_share_a_branch():
    """Variances and gradient variances, both sides with their standard errors."""
    loss = lambda out: F.cross_entropy(out, TARGET)  # noqa: E731
    measured = {row.name: row for row in measure(None, X, loss, build=Streams, seeds=48).sites}
    runs = [{row.name: row for row in predict(build(Streams), X, loss=loss, seed=seed).sites} for seed in range(4)]
    for name, row in measured.items():
        for column in ("variance", "grad_variance"):
            values = torch.tensor([getattr(run[name], column) for run in runs])
            spread = math.hypot(row.errors[column], float(values.std()) / len(runs) ** 0.5)
            assert abs(float(values.mean()) - getattr(row, column)) <= 4.5 * spread, (name, column)


def test_streams_as_independent_channels_would_be_wrong():
    """Four copies of one branch add up to sixteen times its variance, not four."""
    rows = {row.name: row for row in predict(build(lambda: Summed(128)), X).sites}
    assert rows["inside"].variance == pytest.approx(16 / 9 * rows["first"].variance, rel=0.2)


class Summed(nn.Module):
    """`W sum_k g_k v` with four gates `g_k = 1/2` of one vector `v`."""

    def __init__(self, width):
        super().__init__()
        self.gates, self.first = nn.Linear(24, 4), nn.Linear(24, width)
        self.inside, self.readout = nn.Linear(width, width, bias=False), nn.Linear(width, 8)
        nn.init.zeros_(self.gates.weight)
        nn.init.zeros_(self.gates.bias)
        nn.init.normal_(self.inside.weight, std=(4 / 9 / width) ** 0.5)

    def forward(self, x):
        streams = self.gates(x).sigmoid().unsqueeze(-1) * self.first(x).unsqueeze(-2)
        return self.readout(self.inside(streams.sum(1)))


class Memory(nn.Module):
    """A matrix that fades as it is read, beside values of each token: its rows are channels of what is read."""

    def __init__(self, width=48):
        super().__init__()
        self.first, self.value, self.gate = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.start, self.out = nn.Parameter(torch.randn(width, width) / 7), nn.Linear(width, width)

    def forward(self, x):
        x = F.relu(self.first(x))
        memory, kept, read = self.start.expand(len(x), -1, -1), self.gate(x).sigmoid(), []
        for step in range(x.shape[1]):
            memory = kept[:, step, :, None] * memory
            read.append((memory @ x[:, step, :, None]).squeeze(-1))
        return self.out(self.value(x) * torch.sigmoid(torch.stack(read, 1)))


def test_what_ends_in_channels_tells_where_they_are(agreement):
    inputs = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))
    predicted = agreement(Memory, inputs, seeds=64, skip=("gate", "first", "first.weight", "first.bias"))
    assert predicted["out"].token_correlation > 0.1
