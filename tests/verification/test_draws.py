"""Fresh initializations: random parameters anew, everything else as it was, the model untouched."""

import copy
import math

import pytest
import torch
from torch import nn

from sigprop.distributions import Draws, build
from sigprop.verification import Simulation


def test_random_parameters_are_drawn_from_their_laws_and_others_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(200, 64, padding_idx=0), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
    nn.init.eye_(model[3].weight)
    before = copy.deepcopy(model.state_dict())
    draws = Draws(model)
    assert all(torch.equal(before[key], value) for key, value in draws(0).state_dict().items())
    first, again, second = draws(1), draws(1), draws(2)
    assert torch.equal(first[1].weight, again[1].weight)
    assert not torch.equal(first[1].weight, second[1].weight)
    assert float(first[1].weight.detach().var()) == pytest.approx(1 / 192, rel=5 * math.sqrt(0.8 / 4096))
    assert not first[0].weight[0].any()
    assert float(first[0].weight[1:].detach().var()) == pytest.approx(1.0, rel=5 * math.sqrt(2 / 12800) + 0.02)
    assert torch.equal(first[3].weight, torch.eye(64))
    assert torch.equal(first[2].weight, torch.ones(64))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_tied_and_copied_parameters_stay_so():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].weight = model[0].weight
    model[2].load_state_dict(copy.deepcopy(model[0].state_dict()))
    made = Draws(model)(1)
    assert made[1].weight is made[0].weight
    assert torch.equal(made[2].weight, made[0].weight)
    assert not torch.equal(made[0].weight, model[0].weight)


def test_orthogonal_matrices_are_drawn_orthogonal():
    model = nn.Linear(32, 32, bias=False)
    nn.init.orthogonal_(model.weight, gain=1.5)
    made = Draws(model)(1).weight
    assert torch.allclose(made @ made.T, 2.25 * torch.eye(32), atol=1e-4)
    assert not torch.allclose(made, model.weight, atol=0.1)


def test_trained_weights_are_left_as_they_are():
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    trained = torch.randn(64, 3, generator=generator) @ torch.randn(3, 64, generator=generator)
    model.weight.data.copy_(trained)
    draws = Draws(model)
    assert not draws.random
    assert torch.equal(draws(5).weight, model.weight)


def test_hooks_of_the_user_are_not_run():
    seen = []
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 8))
    model[1].register_forward_hook(lambda *args: seen.append(args))
    model(torch.randn(2, 8))
    seen.clear()
    made = Draws(model)(1)
    made(torch.randn(2, 8))
    assert not seen


def test_a_factory_is_called_again_with_the_flags_of_the_model():
    model = build(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))).eval()
    state = torch.get_rng_state()
    first, second = Draws(model)(0), Draws(model)(1)
    assert not first[0].weight.is_meta
    assert not torch.equal(first[0].weight, second[0].weight)
    assert not first[1].training
    assert torch.equal(state, torch.get_rng_state())


def test_a_few_numbers_that_may_be_a_formula_stay():
    model = nn.Linear(64, 64)
    model.mixing = nn.Parameter(torch.tensor([[1.0, -8.0], [-8.0, 1.0]]))
    made = Draws(model)(1)
    assert torch.equal(made.mixing, model.mixing)
    assert not torch.equal(made.bias, model.bias)


class Slots(nn.Module):
    """Draws noise in every pass, as slot attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.mix = nn.Parameter(torch.ones(48)), nn.Linear(48, 48)

    def forward(self, x):
        return self.mix(x) + self.scale * torch.randn(x.shape)


def test_what_a_model_draws_is_independent_of_the_batch_and_of_the_gradient():
    """All from seeds that people take: a model of seed 0, a batch of seed 0, the default seed of predict."""
    torch.manual_seed(0)
    model, rows = Slots(), 16
    batch = torch.randn(rows, 48, generator=torch.Generator().manual_seed(0))
    simulation = Simulation(model, batch, "noise")
    simulation.extend(20)
    deviation = rows * math.sqrt(2 * (1 + 3 / rows) / 48)  # of sums of products of normal numbers
    draws = [
        next(row.grad_second_moment for row in drawn.parameters if row.name == "scale") for drawn in simulation.profiles
    ]
    assert all(abs(value - rows) < 5 * deviation for value in draws)
    assert abs(sum(draws) / 20 - rows) < 5 * deviation / math.sqrt(20)
    variances = [drawn["(output)"].variance for drawn in simulation.profiles]
    assert all(abs(value - 1 - 1 / 3) < 5 * 2 * math.sqrt(2 / (48 * rows)) for value in variances)
