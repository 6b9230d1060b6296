"""The status separates what is known from what is a guess, on real modules as on those built without weights."""

import pytest
import torch
from torch import nn

from sigprop.capture import build, predict


class Ordinary(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.relu(layer(self.norm(x)))
        return self.head(x)


def statuses(model):
    profile = predict(model, torch.randn(8, 32, generator=torch.Generator().manual_seed(0)), loss="noise")
    return [row.status for row in (*profile.sites, *profile.parameters)]


@pytest.mark.parametrize("seed", range(8))
def test_a_real_module_has_the_status_of_the_same_network_built_without_weights(seed):
    torch.manual_seed(seed)
    assert statuses(Ordinary()) == statuses(build(Ordinary))
    assert "assumed" not in statuses(Ordinary())


def test_weights_with_a_mean_are_a_guess():
    model = Ordinary()
    nn.init.normal_(model.layers[1].weight, 0.1, 0.1)
    assert "assumed" in statuses(model)


@pytest.mark.parametrize("fill", [nn.init.eye_, lambda w: w.data.copy_(w.data[:, :2] @ w.data[:2])])
def test_weights_that_are_not_independent_draws_are_a_guess(fill):
    torch.manual_seed(0)
    model = Ordinary()
    fill(model.layers[1].weight)
    assert "assumed" in statuses(model)
