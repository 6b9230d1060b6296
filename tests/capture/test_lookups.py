"""Tables: read twice, with a row for padding, with rows that are not zero."""

import pytest
import torch
from torch import nn

from sigprop.capture import build, predict
from sigprop.graph.evaluate import possible
from sigprop.theory import Dense, Gradient, Status

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


class TiedPostLayerNorm(nn.Module):
    """A head tied to the embedding right above a norm of a sum, whose summands stand in either order."""

    def __init__(self, stream_first, width=96):
        super().__init__()
        self.table, self.dense, self.norm = nn.Embedding(40, width), nn.Linear(width, width), nn.LayerNorm(width)
        nn.init.normal_(self.table.weight, std=0.2)
        self.stream_first = stream_first

    def forward(self, ids):
        x = self.table(ids)
        branch = self.dense(torch.relu(x))
        return self.norm(x + branch if self.stream_first else branch + x) @ self.table.weight.T


def test_the_order_of_a_residual_sum_does_not_matter():
    """Rows of the table come with the stream: in second place, as in BERT, gradients below were 40 % too small."""
    ids = torch.randint(40, (1, 24), generator=torch.Generator().manual_seed(3))
    loss = lambda out: nn.functional.cross_entropy(out[0, :-1], ids[0, 1:])  # noqa: E731
    one, other = (
        predict(build(lambda order=order: TiedPostLayerNorm(order)), ids, loss=loss) for order in (True, False)
    )
    for row in one.parameters:
        assert row.grad_second_moment == pytest.approx(other.parameter(row.name).grad_second_moment, rel=1e-6), row.name


def test_no_energy_is_negative():
    kernel = Dense(torch.tensor([[2.0, 0.1], [0.1, -0.5]], dtype=torch.float64))
    found = possible(Gradient(kernel))
    assert found.evidence.status is Status.ASSUMED
    assert float(found.kernel.diagonal.min()) == 0.0
    assert possible(Gradient(Dense(torch.eye(2)))).evidence.status is Status.EXACT


def looked_up(table, ids):
    return table(ids)


def indexed(table, ids):
    return table.weight[ids]


def multiplied(table, ids):
    return nn.functional.one_hot(ids, 12).float() @ table.weight


class Quantized(nn.Module):
    """The nearest row of a table, with the gradient passed straight through."""

    def __init__(self, read):
        super().__init__()
        self.first, self.table, self.readout = nn.Linear(24, 96), nn.Embedding(12, 96), nn.Linear(96, 16)
        self.read = read

    def forward(self, x):
        x = self.first(x)
        rows = self.read(self.table, torch.cdist(x, self.table.weight).argmin(-1))
        return self.readout(x + (rows - x).detach())


@pytest.mark.parametrize("read", [looked_up, indexed, multiplied])
def test_the_nearest_rows_of_a_table_are_short(read, agreement):
    """Rows were any of the table, 1.2 times too large, and nothing arrived at the first map."""
    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
    predicted = agreement(lambda: Quantized(read), x, "noise", seeds=96, within=4.0, width=25)
    assert predicted.parameter("first.weight").status == "sampled"
