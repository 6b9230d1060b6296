"""Pairs of tokens: a weight that all of them share gets the gradient of each, and they are correlated."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.capture import layout

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 3]])


class Relations(nn.Module):
    """A network over pairs of tokens, each the sum or the difference of two."""

    def __init__(self, differ, width=32):
        super().__init__()
        self.table, self.one = nn.Embedding(10, width), nn.Linear(width, width)
        self.other = None if differ else nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, ids):
        x = self.table(ids)
        one = self.one(x)
        pairs = one[:, :, None] - one[:, None] if self.other is None else one[:, :, None] + self.other(x)[:, None]
        return self.second(F.relu(self.first(pairs))).mean(2)


@pytest.mark.parametrize("differ", [True, False])
@pytest.mark.parametrize("followed", [True, False])
def test_networks_over_pairs(agreement, monkeypatch, differ, followed):
    if not followed:
        monkeypatch.setattr(layout, "PAIRS", 16)
    found = agreement(lambda: Relations(differ), IDS, seeds=32)
    assert all(row.status != "assumed" for row in found.parameters)


class Talking(nn.Module):
    """Heads that are mixed before and behind a softmax (talking heads), by maps that pairs of tokens share."""

    def __init__(self, heads=4, width=32):
        super().__init__()
        self.table, self.maps, self.out = nn.Embedding(10, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.behind, self.heads = nn.Linear(heads, 6), nn.Linear(6, heads), heads

    def forward(self, ids):
        q, k, v = self.maps(self.table(ids)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.before((q @ k.mT * 0.5).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.behind(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def test_heads_that_talk(agreement):
    agreement(Talking, IDS, seeds=32, skip=("before.bias",))  # next to nothing, below a softmax
