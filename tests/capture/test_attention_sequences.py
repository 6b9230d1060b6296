"""Sums over heads where sequences attend within themselves, against the products written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import predict, replayed_heads
from sigprop.theory.ops.attention.drawn import Sequences, between, over_outputs, over_values

REPLICAS, HEADS, BLOCKS, QUERIES, KEYS = 2, 3, 4, 5, 6
GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


MATRIX = drawn(REPLICAS, HEADS, BLOCKS, QUERIES, KEYS)
WHOLE = torch.stack([torch.block_diag(*item) for item in MATRIX.flatten(0, 1)]).unflatten(0, (REPLICAS, HEADS))
VALUES = drawn(REPLICAS, BLOCKS * KEYS, BLOCKS * KEYS)


def inside(full):
    """Entries of queries and keys of one sequence."""
    blocks = full.unflatten(-2, (BLOCKS, QUERIES)).unflatten(-1, (BLOCKS, KEYS))
    return blocks.diagonal(dim1=-4, dim2=-2).permute(0, 1, 4, 2, 3)


def test_over_values():
    kernel = VALUES @ VALUES.mT
    expected = WHOLE @ kernel[:, None] @ WHOLE.mT
    found, energies = over_values(MATRIX, kernel)
    assert torch.allclose(found, expected.sum((0, 1)))
    assert torch.allclose(energies, expected.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("slope", [drawn(BLOCKS * QUERIES, BLOCKS * QUERIES), drawn(BLOCKS * QUERIES)], ids=[2, 1])
def test_over_outputs_and_between(slope):
    full = torch.diag(slope) if slope.ndim == 1 else slope
    assert torch.allclose(over_outputs(MATRIX, slope), (WHOLE.mT @ full @ WHOLE).sum((0, 1)))
    assert torch.allclose(between(MATRIX, slope, VALUES), inside(full @ WHOLE @ VALUES[:, None]))


class Windows(nn.Module):
    """Attention within windows of 2 x 2 positions of a 4 x 4 image, rolled by one, as Swin has it."""

    def __init__(self):
        super().__init__()
        self.embed, self.inside = nn.Linear(3, 16), nn.Linear(16, 48)

    def forward(self, image):
        x = torch.roll(self.embed(image), (1, 1), (1, 2))
        x = x.view(-1, 2, 2, 2, 2, 16).transpose(2, 3).reshape(-1, 4, 16)
        query, key, value = (part.view(-1, 4, 2, 8).transpose(1, 2) for part in self.inside(x).chunk(3, -1))
        weights = F.softmax(4.0 * query @ key.mT / 8**0.5, -1)
        x = (weights @ value).transpose(1, 2).reshape(-1, 2, 2, 2, 2, 16).transpose(2, 3)
        return x.reshape(-1, 4, 4, 16)


def test_windows_are_followed_one_by_one(monkeypatch):
    """The same draws as with one sparse matrix over all positions, and the same numbers."""
    torch.manual_seed(0)
    model, image = Windows(), torch.randn(2, 4, 4, 3)
    counts = []

    def counted(*given, found=replayed_heads.sequences_apart):
        counts.append(found(*given).count)
        return found(*given)

    monkeypatch.setattr(replayed_heads, "sequences_apart", counted)
    apart = predict(model, image)
    assert 8 in counts
    monkeypatch.setattr(replayed_heads, "sequences_apart", lambda *given: Sequences())
    whole = predict(model, image)
    for row in whole.sites:
        assert apart[row.name].variance == pytest.approx(row.variance, rel=1e-5)
        assert apart[row.name].token_correlation == pytest.approx(row.token_correlation, abs=1e-5)
        assert apart[row.name].grad_variance == pytest.approx(row.grad_variance, rel=1e-4)
    for row in whole.parameters:
        assert apart.parameter(row.name).grad_second_moment == pytest.approx(row.grad_second_moment, rel=1e-4)


class Tied(nn.Module):
    """Rows that share one attention over columns: the weights of a batch, or of all of it, are those of each row."""

    def __init__(self, over, width=48):
        super().__init__()
        self.embed, self.inside = nn.Linear(16, width), nn.Linear(width, 3 * width)
        self.readout, self.over = nn.Linear(width, 16), over

    def forward(self, x):
        parts = self.inside(self.embed(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(-2, -3) for part in parts)
        scores = (query @ key.mT).sum(self.over, keepdim=True) * (12 * x.shape[1]) ** -0.5
        return self.readout((scores.softmax(-1) @ value).transpose(-2, -3).flatten(-2))


@pytest.mark.parametrize("over", [1, (0, 1)])
def test_rows_that_share_one_attention(agreement, over):
    agreement(lambda: Tied(over), torch.randn(2, 6, 10, 16, generator=torch.Generator().manual_seed(1)), "noise", 40)


class Shifted(nn.Module):
    """Windows of many sequences, with a bias of each head that some of them may not see all of."""

    def __init__(self, width=48):
        super().__init__()
        self.embed, self.inside = nn.Linear(16, width), nn.Linear(width, 3 * width)
        self.readout, self.bias = nn.Linear(width, 16), nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x):
        parts = self.inside(self.embed(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
        mask = torch.zeros(len(x), 1, 8, 8)
        mask[16:, :, :4, 4:] = mask[16:, :, 4:, :4] = -100.0
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias + mask)
        return self.readout(seen.transpose(1, 2).flatten(2))


def test_heads_with_a_bias_of_each_are_drawn_whole(agreement):
    """One head was drawn for all, and a bias of four made four of it."""
    agreement(Shifted, torch.randn(32, 8, 16, generator=torch.Generator().manual_seed(1)), "noise", seeds=40)
