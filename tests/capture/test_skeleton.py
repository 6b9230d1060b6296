"""Building without weights: every initialization is followed, nothing is allocated, the model is left alone."""

import copy
import math

import pytest
import torch
from torch import nn

from sigprop.capture import build, distribution
from sigprop.distributions import skeleton_of
from sigprop.errors import UnsupportedError

INITIALIZERS = {
    "normal": lambda w: nn.init.normal_(w, 0.1, 0.3),
    "uniform": lambda w: nn.init.uniform_(w, -1.0, 3.0),
    "constant": lambda w: nn.init.constant_(w, 0.7),
    "truncated": lambda w: nn.init.trunc_normal_(w, 0.2, 1.0, -1.0, 1.5),
    "narrow truncation": lambda w: nn.init.trunc_normal_(w, 0.0, 1.0, 1.5, 2.5),
    "kaiming": lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"),
    "kaiming uniform": lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)),
    "xavier": lambda w: nn.init.xavier_uniform_(w, gain=2.0),
    "orthogonal": lambda w: nn.init.orthogonal_(w, gain=1.5),
    "chained": lambda w: w.uniform_(-1, 1).pow_(3).mul_(2.0).add_(0.5),
    "scaled": lambda w: nn.init.normal_(w).mul_(0.25),
}


class Parametrized(nn.Module):
    def __init__(self, initialize):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(400, 400))
        with torch.no_grad():
            initialize(self.weight)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_distribution_agrees_with_real_draws(name):
    torch.manual_seed(0)
    real = Parametrized(INITIALIZERS[name]).weight.detach().double()
    found = distribution(build(lambda: Parametrized(INITIALIZERS[name])).weight)
    count = real.numel()
    spread = float(real.std())
    assert abs(found.mean - float(real.mean())) <= 5 * spread / math.sqrt(count) + 1e-7
    kurtosis = float(((real - real.mean()) ** 4).mean())
    error = math.sqrt(max(kurtosis - spread**4, 0.0) / count)
    assert abs(found.variance - spread**2) <= 5 * error + 1e-4 * spread**2 + 1e-12


def test_a_wrong_variance_would_be_noticed():
    torch.manual_seed(0)
    real = Parametrized(lambda w: nn.init.normal_(w, 0.0, 0.3)).weight.detach()
    wrong = distribution(build(lambda: Parametrized(lambda w: nn.init.normal_(w, 0.0, 0.31))).weight)
    assert abs(wrong.variance - float(real.var())) > 5 * 0.09 * math.sqrt(2 / real.numel())


def test_draws_have_the_recorded_moments():
    found = distribution(build(lambda: Parametrized(INITIALIZERS["truncated"])).weight)
    drawn = found.draw((200_000,), torch.Generator().manual_seed(0))
    assert abs(float(drawn.mean()) - found.mean) < 5 * math.sqrt(found.variance / 200_000)
    assert float(drawn.min()) >= -1.0
    assert float(drawn.max()) <= 1.5


def test_parameters_are_on_meta_and_buffers_are_real():
    model = build(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    assert all(p.is_meta for p in model.parameters())
    assert not any(b.is_meta for b in model.buffers())


def test_values_given_at_construction_are_measured():
    class GivenSignal(nn.Module):
        def __init__(self):
            super().__init__()
            self.zeros = nn.Parameter(torch.zeros(3, 4))
            self.ramp = nn.Parameter(torch.arange(5.0))
            self.table = nn.Parameter(torch.arange(6.0), requires_grad=False)

    model = build(GivenSignal)
    assert distribution(model.zeros).second_moment == 0.0
    assert distribution(model.ramp).mean == 2.0
    assert distribution(model.ramp).variance == pytest.approx(2.0)
    assert not model.table.is_meta


def test_copies_made_while_building_keep_their_distribution():
    model = build(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2), 3, enable_nested_tensor=False))
    first, last = (distribution(model.layers[i].linear1.weight) for i in (0, 2))
    assert first.variance == last.variance > 0


def test_a_part_initialized_anew_mixes_in():
    class Parted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(10, 4))
            with torch.no_grad():
                nn.init.normal_(self.weight, 0.0, 1.0)
                self.weight[:5].zero_()

    assert distribution(build(Parted).weight).second_moment == pytest.approx(0.5)


def test_huge_models_cost_nothing():
    model = build(lambda: nn.Linear(200_000, 100_000))
    assert model.weight.is_meta
    assert distribution(model.weight).variance == pytest.approx(1 / (3 * 200_000))


def test_the_given_model_is_untouched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = copy.deepcopy(model.state_dict())
    twin = skeleton_of(model)
    assert twin[0].weight.is_meta
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7, bias=False))
    model[1].weight = model[0].weight
    twin = skeleton_of(model)
    assert twin[0].weight is twin[1].weight


def test_what_cannot_be_copied_is_reported():
    class Stubborn(nn.Module):
        def __deepcopy__(self, memo):
            raise RuntimeError("no copies")

    with pytest.raises(UnsupportedError, match=r"Stubborn cannot be copied .*no copies.*function that builds it"):
        skeleton_of(Stubborn())


def test_torch_is_restored():
    before = nn.Module.register_parameter, nn.init._no_grad_trunc_normal_, nn.init.orthogonal_
    with pytest.raises(ZeroDivisionError):
        build(lambda: 1 / 0)
    assert before == (nn.Module.register_parameter, nn.init._no_grad_trunc_normal_, nn.init.orthogonal_)
    assert not nn.Linear(2, 2).weight.is_meta


def test_numbers_made_on_the_device_of_a_parameter_are_copied_into_it():
    class Decay(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.empty(64, 16))
            steps = torch.arange(1, 17, dtype=torch.float32, device=self.rate.device)
            with torch.no_grad():
                self.rate.copy_(steps.log().expand(64, -1))

    found = distribution(build(Decay).rate)
    expected = torch.arange(1, 17).double().log()
    assert found.mean == pytest.approx(float(expected.mean()), rel=1e-6)
    assert found.variance == pytest.approx(float(expected.var(unbiased=False)), rel=1e-6)


class Written(nn.Module):
    """Numbers made like a parameter, on its device or beside it, and copied into it."""

    def __init__(self, write):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6))
        with torch.no_grad():
            self.weight.copy_(write(self.weight))


@pytest.mark.parametrize(
    ("write", "mean", "variance"),
    [
        (lambda w: -10.0 * torch.ones_like(w), -10.0, 0.0),
        (lambda w: torch.ones_like(w * 0.3 + torch.arange(6.0)), 1.0, 0.0),
        (lambda w: torch.linspace(3.0, 8.0, 6).to(device=w.device, dtype=w.dtype), 5.5, 35 / 12),
    ],
    ids=["alike", "beside a parameter", "moved to its device"],
)
def test_numbers_copied_into_a_parameter(write, mean, variance):
    found = distribution(build(lambda: Written(write)).weight)
    assert found.mean == pytest.approx(mean)
    assert found.variance == pytest.approx(variance)


class Rescaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6))
        nn.init.normal_(self.weight, 0.0, 2.0)
        with torch.no_grad():
            self.weight.copy_(self.weight / 4.0)


def test_a_parameter_rescaled_by_a_copy_of_itself():
    assert distribution(build(Rescaled).weight).variance == pytest.approx(0.25)
