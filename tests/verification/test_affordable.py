"""How many initializations are drawn for what may be spent on them."""

import pytest
import torch
from torch import nn

from sigprop.capture import predict
from sigprop.distributions import build
from sigprop.verification import Simulation, verified

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def drawn(share):
    """The note of a verification that may spend `share` of a pass beyond the first."""
    model = build(lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    simulation = Simulation(model, X, "noise")
    simulation.extend(1)
    return verified(predict(model, X), simulation, 24, share * simulation.operations).meta["verification"]


@pytest.mark.parametrize(("share", "draws"), [(1.0, 3), (4.5, 5)])
def test_three_are_drawn_where_they_cost_three_times_as_much(share, draws):
    assert drawn(share)["draws"] == draws


def test_none_count_where_they_cost_more():
    assert "not verified" in drawn(0.9)
