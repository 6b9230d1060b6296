"""Parameters that a formula fills are known entry by entry: parts of them, and what is computed from them, have their
own numbers."""

import pytest
import torch
from torch import nn

from sigprop.capture.tracing import trace
from sigprop.distributions import build, distribution, skeleton_of

IDS = torch.arange(8)[None]


class Gates(nn.Module):
    """Two gates whose offsets stand in one parameter, as hyper-connections have them."""

    def __init__(self):
        super().__init__()
        self.table, self.map = nn.Embedding(16, 64), nn.Linear(64, 8, bias=False)
        self.base = nn.Parameter(torch.cat((torch.full((4,), -3.0), torch.zeros(4))))
        self.closed, self.open = nn.Identity(), nn.Identity()
        nn.init.normal_(self.map.weight, std=0.02)

    def forward(self, ids):
        first, second = self.map(self.table(ids)).split(4, -1)
        closed, opened = self.base.split(4, -1)
        return self.closed(torch.sigmoid(first + closed)) + self.open(torch.sigmoid(second + opened))


class Decays(nn.Module):
    """Decays by a formula in a scan: state `n` of every channel forgets at its own rate."""

    def __init__(self, states=16):
        super().__init__()
        self.table, self.step = nn.Embedding(16, 64), nn.Linear(64, 64)
        self.rates = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).expand(64, -1).contiguous())
        self.register_buffer("signs", 1.0 - 2.0 * (torch.arange(states) % 2))
        self.summed = nn.Identity()

    def forward(self, ids):
        x = self.table(ids)
        forgotten = torch.exp(-torch.exp(self.rates) * nn.functional.softplus(self.step(x))[..., None])
        state = 0.0
        for token in range(ids.shape[1]):
            state = forgotten[:, token] * state + x[:, token, :, None]
        return self.summed((state * self.signs).sum(-1))[:, None] + x


@pytest.mark.parametrize("prepare", [build, lambda make: skeleton_of(make())], ids=["built", "real"])
def test_parts_of_a_table_have_their_own_numbers(prepare):
    found = trace(prepare(Gates), IDS)
    mean = {name: float(found.states.signal(item.node).mean.mean()) for name, item in found.sites}
    assert mean["closed"] == pytest.approx(float(torch.sigmoid(torch.tensor(-3.0))), rel=0.02)
    assert mean["open"] == pytest.approx(0.5, rel=0.02)


def test_parts_of_a_table_against_measurement(agreement):
    agreement(Gates, IDS)


def test_a_table_is_not_drawn():
    law = distribution(build(Decays).rates)
    numbers = law.draw((64, 16), torch.Generator().manual_seed(1))
    assert torch.equal(numbers, torch.log(torch.arange(1, 17).float()).expand(64, -1).double())
    assert law.draw((7,), torch.Generator().manual_seed(1)).shape == (7,)


def test_what_is_computed_from_a_table_keeps_its_entries(agreement):
    agreement(Decays, IDS)


class Interactions(nn.Module):
    """Products of all pairs of features, of which one is larger, as in DLRM."""

    def __init__(self):
        super().__init__()
        self.first, self.tables = nn.Linear(6, 16), nn.ModuleList(nn.Embedding(20, 16) for _ in range(3))
        self.top = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 8))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, x, ids):
        rows = [table(ids[:, n]) for n, table in enumerate(self.tables)]
        both = torch.stack([3.0 * self.first(x), *rows], 1)
        i, j = torch.tril_indices(4, 4, -1)
        return self.top((both @ both.mT)[:, i, j])


def test_pairs_picked_from_products_have_states_of_their_own(agreement):
    """All had that of the average pair, the squares among them: variance five times, tables a hundredth."""
    generator = torch.Generator().manual_seed(1)
    x, ids = torch.randn(12, 6, generator=generator), torch.randint(20, (12, 3), generator=generator)
    agreement(Interactions, (x, ids), "noise", seeds=200)


class Grid(nn.Module):
    """Learned rows and columns as the positions of a grid, side by side or added."""

    def __init__(self, together):
        super().__init__()
        size = 8 if together == "cat" else 16
        self.rows, self.columns = nn.Parameter(torch.randn(4, size)), nn.Parameter(torch.randn(3, size))
        self.first, self.together = nn.Linear(6, 16), together
        self.out = nn.Linear(16, 8)

    def forward(self, x):
        rows, columns = self.rows[:, None].expand(-1, 3, -1), self.columns[None].expand(4, -1, -1)
        places = torch.cat([rows, columns], -1) if self.together == "cat" else rows + columns
        x = self.first(x) + places.flatten(0, 1)
        return self.out(torch.relu(x).mean(1))


@pytest.mark.parametrize("together", ["cat", "sum"])
def test_positions_made_of_several_tables_share_their_rows(agreement, together):
    """Each position had numbers of its own, so that tables got 0.4 of their gradient."""
    agreement(lambda: Grid(together), torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(1)), "noise", 100)


def test_states_of_tables_are_float64():
    """Shares were float32, and attention over a query that is a parameter a fault."""
    states = trace(build(lambda: Grid("cat")), torch.randn(2, 12, 6)).states
    assert {states.signal(node).kernel.values.dtype for node in states.nodes} == {torch.float64}
