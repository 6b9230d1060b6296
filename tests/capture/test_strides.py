"""Strides that a model reads are those of the tensor that stands for its own: replays are given such a tensor."""

import torch
from torch import nn

IDS = torch.arange(16)[None]


class Windows(nn.Module):
    """Overlapping windows of keys by `as_strided`, of heads that a transposition put first."""

    def __init__(self, heads=4, width=64, window=4):
        super().__init__()
        self.table, self.norm = nn.Embedding(32, width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.heads, self.window = heads, window

    def forward(self, ids):
        x = self.norm(self.table(ids))
        query, key = (self._heads(item) for item in (self.query(x), self.key(x)))
        size = list(key.size())
        stride, chunks = key.stride(), size[1] // self.window - 1
        seen = key.as_strided(
            (size[0], chunks, 2 * self.window, size[2]), (stride[0], self.window * stride[1], stride[1], stride[2])
        )
        own = query.unflatten(1, (-1, self.window))[:, :chunks]
        share = torch.softmax(torch.einsum("hcxd,hcyd->hcxy", own, seen), -1)
        return torch.einsum("hcxy,hcyd->cxhd", share, seen.detach()).flatten(2).flatten(0, 1)[None]

    def _heads(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).reshape(self.heads, x.shape[1], -1)


def test_windows_by_strides(agreement):
    found = agreement(Windows, IDS, seeds=32)
    rows = {row.name: row.grad_second_moment for row in found.parameters}
    assert rows["key.bias"] == 0.0 < rows["query.bias"]
