"""An average over positions that goes back to each of them: the same at all, not one of its own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 3]])


def of_heads(x):
    return x.unflatten(-1, (4, -1)).transpose(1, 2).mean(2, keepdim=True).expand(-1, -1, x.shape[1], -1)


AVERAGES = {
    "heads": lambda x: of_heads(x).transpose(1, 2).flatten(2),
    "heads in the batch": lambda x: of_heads(x).flatten(0, 1).unflatten(0, (-1, 4)).transpose(1, 2).flatten(2),
    "channels first": lambda x: F.relu(x.mT.mean(-1, keepdim=True)).repeat(1, 1, x.shape[1]).mT,
    "gate": lambda x: (x.mT * x.mT.mean(2, keepdim=True).sigmoid().expand_as(x.mT)).mT,
}


class Broadcast(nn.Module):
    def __init__(self, average, width=96):
        super().__init__()
        self.table, self.value, self.out = nn.Embedding(10, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.average = nn.LayerNorm(width), AVERAGES[average]

    def forward(self, ids):
        x = self.table(ids)
        return self.norm(x + self.out(self.average(self.value(x)))).mean(1)


@pytest.mark.parametrize("average", AVERAGES)
def test_averages_that_go_back(agreement, average):
    agreement(lambda: Broadcast(average), IDS, seeds=32)
