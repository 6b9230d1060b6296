"""Parameters that are put together to one weight: each receives what its own outputs or positions do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.capture import build, predict

IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 6]])


class Fused(nn.Module):
    """One map for queries, keys and values, whose bias (or whose weight too) is put together of parts (BEiT)."""

    def __init__(self, apart, width=32):
        super().__init__()
        self.table, self.out, self.apart = nn.Embedding(10, width), nn.Linear(width, width), apart
        self.maps = nn.ParameterList([torch.randn(width, width) / width**0.5 for _ in range(3)])
        self.query, self.value = nn.Parameter(torch.randn(width) * 0.1), nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, ids):
        zeros = torch.zeros(len(self.value))
        weight, bias = torch.cat(list(self.maps)), torch.cat([self.query, zeros, self.value])
        parts = F.linear(self.table(ids), weight, None if self.apart else bias)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts.chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("apart", [True, False])
def test_a_map_of_several(agreement, apart):
    agreement(lambda: Fused(apart), IDS, seeds=32)


class Places(nn.Module):
    """Learned positions that are put together, of which only the first is read out."""

    def __init__(self, padded, width=96):
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(10, width), nn.LayerNorm(width), nn.Linear(width, width)
        self.first, self.rest = nn.Parameter(torch.randn(1, width)), nn.Parameter(torch.randn(5, width))
        self.padded = padded

    def forward(self, ids):
        places = F.pad(self.rest, (0, 0, 1, 0)) if self.padded else torch.cat([self.first, self.rest])[None]
        return self.out(self.norm(0.5 * self.table(ids) + places)[:, 0])


@pytest.mark.parametrize("padded", [True, False])
def test_positions_of_several(agreement, padded):
    found = agreement(lambda: Places(padded), IDS, seeds=32)
    rows = {row.name: row.grad_second_moment for row in found.parameters}
    assert rows["rest"] == 0.0


class Cells(nn.Module):
    """Steps of a cell, for which there is no rule, on what is put together of the input and its last state."""

    def __init__(self, width=16):
        super().__init__()
        self.listen, self.cell = nn.LSTM(8, width, batch_first=True), nn.LSTMCell(8 + width, width)
        self.readout = nn.Linear(width, 8)

    def forward(self, x):
        seen = self.listen(x)[0]
        state = self.cell(torch.cat([x[:, 0], seen[:, -1]], -1))
        return self.readout(self.cell(torch.cat([x[:, 1], state[0]], -1), state)[0])


def test_what_a_function_without_a_rule_makes_of_joined_weights_is_a_guess():
    """The registry of rules was asked for `lstm_cell`, and its error was what the user saw."""
    found = predict(build(Cells), torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0)), loss="noise")
    assert found["readout"].status == "assumed"
