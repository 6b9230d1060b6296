"""Tables: read twice, with a row for padding, with rows that are not zero."""

import pytest
import torch
from torch import nn

from sigprop.trace import build, predict

IDS = torch.tensor([[1, 2, 3, 2, 0, 0], [4, 1, 0, 5, 6, 0]])
OTHER = torch.tensor([[2, 2, 3, 1, 1, 7], [4, 3, 1, 5, 2, 0]])


class Boxes(nn.Module):
    """One table for the left and the right side of a box, as models of documents have."""

    def __init__(self, width=96):
        super().__init__()
        self.words, self.places = nn.Embedding(8, width), nn.Embedding(8, width)
        self.out, self.readout = nn.Identity(), nn.Linear(width, 8)

    def forward(self, ids):
        return self.readout(self.out(self.words(ids) + self.places(ids) + self.places(OTHER) + self.places(ids)))


def test_a_table_read_twice_adds_in_step(agreement):
    """The variance was 2/3 of the true one, the gradient of the table 1/3."""
    agreement(Boxes, IDS, seeds=64)


class Padded(nn.Module):
    def __init__(self, zero=True, width=96):
        super().__init__()
        self.words = nn.Embedding(8, width, padding_idx=0)
        if not zero:
            nn.init.normal_(self.words.weight)
        self.first, self.readout = nn.Linear(width, width), nn.Linear(width, 8)

    def forward(self, ids):
        return self.readout(self.first(self.words(ids)))


@pytest.mark.parametrize("zero", [True, False])
def test_padding_is_zero_where_it_was_set_so_and_never_trained(agreement, zero):
    agreement(lambda: Padded(zero), IDS, seeds=64)


@pytest.mark.parametrize("zero", [True, False])
def test_padding_of_a_module_with_weights(zero):
    """Its row is read, not supposed."""
    torch.manual_seed(0)
    real, built = predict(Padded(zero), IDS), predict(build(lambda: Padded(zero)), IDS)
    assert real["words"].variance == pytest.approx(built["words"].variance, rel=0.2)
    share = (IDS != 0).double().mean() if zero else 1.0
    assert built["words"].variance == pytest.approx(float(share), rel=0.01)
