"""Rows of sites that a drawn function or loss passes on its way: what arrives counts once, and all of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop import predict
from studies.corpus.witness import witnessed


class OneNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(24, 48), nn.Linear(48, 1)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x))).squeeze(1)


class Gated(nn.Module):
    """Squeeze and excitation in a branch."""

    def __init__(self, width=24):
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 1, bias=False)
        self.norm, self.gate = nn.BatchNorm2d(width), nn.Conv2d(width, width, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        branch = self.norm(self.branch(x))
        return torch.relu(x + branch * torch.sigmoid(self.gate(branch.mean((2, 3), keepdim=True)))).mean((2, 3))


def logistic(output):
    return F.binary_cross_entropy_with_logits(output, (torch.arange(16) % 3 == 0).float())


@pytest.mark.parametrize(
    ("make", "shape", "loss", "sites"),
    [(OneNumber, (16, 24), logistic, ["out", "(output)"]), (Gated, (5, 3, 15, 15), None, ["branch", "norm"])],
)
def test_a_site_receives_all_that_arrives_once(make, shape, loss, sites):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    profile, seen = predict(make, x, loss=loss or "noise", verify=0), witnessed(make, x, loss, 24)
    for site in sites:
        row, (mean, error) = profile[site], seen[site]["grad_variance"]
        assert abs(row.grad_variance - mean) < 4 * error + row.stated_errors["grad_variance"] * mean


class BelowBatchNorm(nn.Module):
    """The bias of one BatchNorm, behind a filter of each channel, below a map and another."""

    def __init__(self, width=24):
        super().__init__()
        self.stem, self.filters = nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 3, groups=width, bias=False)
        self.first, self.map = nn.BatchNorm2d(width), nn.Conv2d(width, width, 1, bias=False)
        self.second, self.out = nn.BatchNorm2d(width), nn.Linear(width, 5)

    def forward(self, x):
        x = self.second(self.map(self.first(self.filters(torch.relu(self.stem(x))))))
        return self.out(torch.relu(x).mean((2, 3)))


def test_what_a_norm_over_the_batch_takes_out_no_map_brings_back():
    x = torch.randn(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    profile = predict(BelowBatchNorm, x, loss="cross_entropy", verify=0)
    found = {row.name: row.grad_second_moment for row in profile.parameters}
    assert found["first.bias"] < 1e-12 * found["second.bias"]
    assert found["first.weight"] > 1e-4 * found["second.weight"]


class TwoEncoders(nn.Module):
    """The second starts as a copy of the first, and is not trained: MoCo, BYOL."""

    def __init__(self, copied):
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(24, 32)
        for parameter, other in zip(self.first.parameters(), self.second.parameters(), strict=True):
            if copied:
                other.data.copy_(parameter.data)
            other.requires_grad = False

    def forward(self, x):
        return self.first(x) * self.second(x)


@pytest.mark.parametrize("copied", [False, True])
def test_numbers_of_a_copy_are_no_draw_of_their_own(copied):
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    row = predict(lambda: TwoEncoders(copied), x, loss="noise", verify=0)["(output)"]
    assert (row.status == "assumed") == copied
