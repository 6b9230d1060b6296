"""Whatever a constructor does to a parameter, its law comes out as it is: recorded on meta, or by calling it."""

import copy
import math
import threading

import pytest
import torch
from torch import nn

from sigprop.distributions import (
    STRUCTURED,
    UNKNOWN,
    build,
    distribution,
    independence,
    read_parameters,
    skeleton_of,
)
from sigprop.distributions.independence import kind_of

SIDE = 96


def _given_data(w):
    w.data = torch.randn(SIDE, SIDE) * 0.02


def _sinusoids(w):
    steps = torch.arange(SIDE)[:, None] * torch.exp(-torch.arange(SIDE // 2) / 8.0)
    w.data.copy_(torch.cat((steps.sin(), steps.cos()), 1))


def _padded_by_nothing(w):
    """As transformers ties the bias of an output to its embeddings."""
    nn.init.normal_(w, 0.0, 0.02)
    w.data = nn.functional.pad(w.data, (0, 0))


def _first_row_zero(w):
    nn.init.normal_(w, 0.0, 0.1)
    w.data[0].zero_()


def _entries(w):
    nn.init.zeros_(w)
    with torch.no_grad():
        w[3:6] = 2.0


IDIOMS = {
    "data.normal_": lambda w: w.data.normal_(0.0, 0.02),
    "data.uniform_ then mul_": lambda w: w.data.uniform_(-1, 1).mul_(0.1),
    "data =": _given_data,
    "data *=": lambda w: (nn.init.normal_(w), w.data.mul_(0.02)),
    "data.fill_": lambda w: w.data.fill_(0.3),
    "detach().normal_": lambda w: w.detach().normal_(0.1, 0.05),
    "clone copied back": lambda w: w.data.copy_(nn.init.normal_(w.data.clone(), 0.0, 0.3)),
    "eye_": nn.init.eye_,
    "sparse_": lambda w: nn.init.sparse_(w, 0.75, std=0.5),
    "orthogonal_": lambda w: nn.init.orthogonal_(w, gain=2.0),
    "orthogonal_ of data": lambda w: nn.init.orthogonal_(w.data),
    "truncated": lambda w: nn.init.trunc_normal_(w.data, std=0.02, a=-0.02, b=0.02),
    "padded by nothing": _padded_by_nothing,
    "sinusoids": _sinusoids,
    "row of zeros": _first_row_zero,
    "setitem": _entries,
}


class Holder(nn.Module):
    def __init__(self, initialize):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(SIDE, SIDE))
        initialize(self.weight)


def moments(tensor):
    values = tensor.detach().double()
    return (
        float(values.mean()),
        float(values.square().mean()),
        float((values.square()).std()) / math.sqrt(values.numel()),
    )


@pytest.mark.parametrize("way", ["recorded", "constructed"])
@pytest.mark.parametrize("idiom", IDIOMS)
def test_every_idiom_is_followed(idiom, way, monkeypatch):
    if way == "recorded":
        monkeypatch.setattr(independence, "ALWAYS", 0)
        monkeypatch.setattr(independence, "AT_MOST", 0)
    found = distribution(build(lambda: Holder(IDIOMS[idiom])).weight)
    torch.manual_seed(3)
    mean, second, error = moments(Holder(IDIOMS[idiom]).weight)
    assert found.second_moment == pytest.approx(second, rel=1e-5, abs=6 * error)
    assert found.mean == pytest.approx(mean, rel=1e-5, abs=6 * math.sqrt(second) / SIDE)
    assert found.kind != UNKNOWN


def test_what_cannot_be_followed_says_so_where_the_constructor_is_too_large(monkeypatch):
    def product(w):
        nn.init.normal_(w)
        w.data.copy_(w.data @ w.data)

    assert distribution(build(lambda: Holder(product)).weight).variance == pytest.approx(SIDE, rel=0.15)
    monkeypatch.setattr(independence, "AT_MOST", 0)
    monkeypatch.setattr(independence, "ALWAYS", 0)
    assert distribution(build(lambda: Holder(product)).weight).kind == UNKNOWN


def test_a_bias_divided_by_what_the_std_of_its_weight_says():
    """Of 8 numbers the std was torch's own of a bias, 1.9 times too large."""

    def rescaled():
        layer = nn.Conv1d(4, 8, 1)
        scale = (layer.weight.detach().std() / 0.08) ** 0.5
        layer.weight.data, layer.bias.data = layer.weight.data / scale, layer.bias.data / scale
        return layer

    found = build(rescaled)
    scale = (12**-0.5 / 0.08) ** 0.5
    for parameter in (found.weight, found.bias):
        assert distribution(parameter).variance == pytest.approx(1 / 12 / scale**2, rel=1e-4)


def test_a_parametrized_weight_has_the_laws_of_its_parts():
    model = build(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(64, 48)))
    parts = dict(model.named_parameters())
    length = distribution(parts["parametrizations.weight.original0"])
    assert length.mean == pytest.approx(1 / math.sqrt(3), rel=0.05)


def test_a_constructor_that_computes_with_its_weights_is_called_with_weights():
    model = build(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(64, 48)))
    (weight,) = (p for name, p in model.named_parameters() if name.endswith("original"))
    assert weight.is_meta
    assert distribution(weight).variance == pytest.approx(1 / 192, rel=0.1)


def test_a_constructor_that_fails_fails_with_its_own_error():
    with pytest.raises(ZeroDivisionError):
        build(lambda: 1 / 0)


def test_a_frozen_table_keeps_its_numbers():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(SIDE, SIDE)
            self.table.weight.requires_grad_(False)
            _sinusoids(self.table.weight)

    model = build(Positions)
    expected = Positions().table.weight
    assert torch.equal(model.table.weight, expected)


def test_a_trainable_table_is_known_not_to_be_independent():
    assert distribution(build(lambda: Holder(_sinusoids)).weight).kind == STRUCTURED


def test_copies_of_one_layer_keep_their_law():
    layer = nn.Linear(8, 8)
    model = build(lambda: nn.Sequential(*(copy.deepcopy(nn.Linear(32, 32)) for _ in range(3))))
    assert distribution(model[2].weight).variance == pytest.approx(1 / 96)
    assert not layer.weight.is_meta


def test_the_mean_of_a_centred_draw_is_zero_and_a_real_mean_stays():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    nn.init.normal_(model[0].weight, 0.0, 0.1)
    nn.init.normal_(model[1].weight, 0.05, 0.1)
    twin = skeleton_of(model)
    assert distribution(twin[0].weight).mean == 0.0
    assert distribution(twin[1].weight).mean == pytest.approx(0.05, abs=5 * 0.1 / 64)


def test_a_small_bias_as_torch_draws_it_has_torchs_law():
    torch.manual_seed(0)
    twin = skeleton_of(nn.Linear(100, 6))
    assert distribution(twin.bias).variance == pytest.approx(1 / 300)
    changed = nn.Linear(100, 6)
    nn.init.normal_(changed.bias, 0.0, 1.0)
    assert distribution(skeleton_of(changed).bias).variance > 0.05


@pytest.mark.parametrize("entries", [2, 6, 10, 40])
def test_a_small_bias_of_zeros_stays_zero(entries):
    model = nn.Linear(64, entries)
    nn.init.zeros_(model.bias)
    assert distribution(skeleton_of(model).bias).second_moment == 0.0


def test_other_threads_build_real_modules_meanwhile():
    made, inside, done = [], threading.Event(), threading.Event()

    def factory():
        inside.set()
        done.wait(10)
        return nn.Linear(3, 3)

    thread = threading.Thread(target=lambda: made.append(build(factory)))
    thread.start()
    inside.wait(10)
    beside = nn.Linear(3, 3)
    done.set()
    thread.join()
    assert not beside.weight.is_meta
    assert made[0].weight.is_meta
    assert not nn.Linear(2, 2).weight.is_meta


def test_random_states_come_back():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(64, 64),
        lambda: torch.rand(40, 100) - 0.5,
        lambda: torch.randn(32, 3, 3, 3),
        lambda: torch.randn(500),
        lambda: torch.cat((torch.zeros(1, 512), torch.randn(99, 512))),
        lambda: nn.init.sparse_(torch.empty(64, 64), 0.5),
    ],
    ids=["normal", "uniform", "convolution", "vector", "padding row", "sparse"],
)
def test_independent_draws_are_called_so(draw):
    torch.manual_seed(1)
    assert [kind_of(draw()) for _ in range(20)].count("independent") == 20


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(32),
        torch.arange(64.0),
        torch.ones(16, 64) * torch.arange(64.0).log1p(),
        nn.init.dirac_(torch.empty(16, 16, 3, 3)),
        torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        @ torch.randn(4, 64, generator=torch.Generator().manual_seed(1)),
        torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).repeat(3, 1),
    ],
    ids=["identity", "ramp", "repeated rows", "dirac", "low rank", "repeated blocks"],
)
def test_structure_is_noticed(tensor):
    assert kind_of(tensor) == "structured"


def test_an_orthogonal_matrix_is_called_so():
    assert kind_of(nn.init.orthogonal_(torch.empty(64, 32))) == "orthogonal"


class OfNumbers(nn.Module):
    """Parameters made of random numbers, in the ways of constructors."""

    def __init__(self):
        super().__init__()
        self.drawn, self.scaled = nn.Parameter(torch.randn(4)), nn.Parameter(0.5 * torch.randn(4) + 1.0)
        self.filled = nn.Parameter(torch.empty(4).uniform_(0.0, 2.0))
        self.shifted, self.moved = nn.Parameter(torch.rand(4) - 0.5), nn.Parameter(torch.randn(2, 2).t() / 2)
        self.written, self.copied = (nn.Parameter(torch.zeros(4)) for _ in range(2))
        with torch.no_grad():
            self.copied.copy_(torch.randn(4))
        self.written.data = torch.randn(4)


def test_few_random_numbers_say_less_than_how_they_were_made():
    laws = {name: law for name, _, law, _ in read_parameters(build(OfNumbers))}
    known = {"drawn": (0, 1), "scaled": (1, 0.25), "filled": (1, 1 / 3), "shifted": (0, 1 / 12), "moved": (0, 0.25)}
    known |= {"written": (0, 1), "copied": (0, 1)}
    for name, (mean, variance) in known.items():
        assert laws[name].mean == pytest.approx(mean, abs=1e-6), name
        assert laws[name].variance == pytest.approx(variance, rel=1e-3), name


class Changed(nn.Module):
    """Something else is done to random numbers before they are a parameter."""

    def __init__(self):
        super().__init__()
        numbers = [torch.randn(64, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
        numbers[0][:32] = 5.0
        numbers[1].mul_(torch.arange(64))
        numbers[2].exponential_()
        self.parts = nn.ParameterList(nn.Parameter(item) for item in numbers)


def test_numbers_that_were_changed_are_measured():
    variances = [law.variance for _, _, law, _ in read_parameters(build(Changed))]
    assert variances[0] > 4.0
    assert variances[1] > 100.0
    assert variances[2] != pytest.approx(1.0, rel=1e-3)
