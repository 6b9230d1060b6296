"""What one draw of a module's weights leaves open is in the errors of its rows; a function leaves nothing open."""

import math

import pytest
import torch
from torch import nn

import sigprop as sp


class Scaled(nn.Module):
    """A gain of few entries, drawn by a rule that torch does not have."""

    def __init__(self, entries=32, outputs=64):
        super().__init__()
        self.gain = nn.Parameter(0.7 * torch.randn(entries))
        self.head = nn.Linear(entries, outputs)

    def forward(self, x):
        return self.head(x * self.gain)


class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(48, 48, bias=False), nn.Linear(48, 48)
        self.first.weight.data.copy_(torch.randn(48, 2) @ torch.randn(2, 48) * 0.1)

    def forward(self, x):
        return self.second(x + self.first(x))


@pytest.fixture
def batch():
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(0))


def test_a_gain_of_few_entries_makes_its_rows_uncertain(batch):
    torch.manual_seed(0)
    row = sp.predict(Scaled(), batch, loss="noise")["head"]
    told = math.sqrt(2 / 32)
    assert 0.5 * told < row.errors["variance"] / row.variance < 3 * told
    truth = sp.measure(None, batch, build=Scaled, seeds=range(200, 240), loss="noise")["head"]
    assert abs(row.variance - truth.variance) < 4 * row.errors["variance"]


def test_a_function_that_builds_the_model_leaves_no_such_doubt(batch):
    row = sp.predict(Scaled, batch, loss="noise")["head"]
    assert row.errors.get("variance", 0.0) < 0.1 * row.variance
    assert row.status != "assumed"


def test_large_parameters_tell_their_laws():
    torch.manual_seed(0)
    batch = torch.randn(8, 4096, generator=torch.Generator().manual_seed(0))
    row = sp.predict(Scaled(4096, 16), batch, loss="noise")["head"]
    assert row.errors.get("variance", 0.0) < 0.1 * row.variance


def test_structured_weights_of_a_module_are_its_own():
    torch.manual_seed(0)
    batch = torch.randn(4, 48, generator=torch.Generator().manual_seed(0))
    profile = sp.predict(LowRank(), batch, loss="noise")
    assert profile["first"].status == "assumed"
    assert "pass the function" in profile["first"].reason
