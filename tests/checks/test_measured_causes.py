"""Losses by hand, levels of matrices, padding, pairs, numbers and steps: each mistake is told, its twin is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from sigprop.checks.levels import levels
from sigprop.checks.observation import observe, other_values
from tests.checks.test_answers import answered, code_of
from tests.checks.test_operations import Made, X, influenced

WANTED = torch.randn(32, generator=torch.Generator().manual_seed(2))
PADDED = torch.randint(1, 32, (8, 20), generator=torch.Generator().manual_seed(3))
for _row in range(8):
    PADDED[_row, 4 + _row :] = 0


def made(act, batch=X, extra=0.0, size=1):
    torch.manual_seed(0)
    return answered(Made(act, extra, size), batch)


@pytest.mark.parametrize("size", [lambda d: d.square(), lambda d: d**2, lambda d: d.abs(), lambda d: 3.0 * d.pow(2)])
def test_a_loss_by_hand_is_seen_as_one_beside_an_output_of_zeros(size):
    torch.manual_seed(0)
    (item,) = observe(Made(lambda h, e: size(h - X).mean()), X).losses
    assert item.kind == "regression"
    assert item.chance == pytest.approx(float(size(X).mean()), rel=1e-5)
    assert item.wanted == pytest.approx(float(X.square().mean() ** 0.5), rel=1e-5)


def test_losses_by_hand_are_told_where_they_broadcast_or_start_too_large():
    mixed = made(lambda h, e: (h[:, :1] - WANTED).square().mean())["loss_inputs"]
    assert "shape (32, 1) with targets of shape (32,)" in mixed.title
    assert "loss_inputs" not in made(lambda h, e: (h[:, 0] - WANTED).square().mean())
    nearest = made(lambda h, e: (h[:, None] - X[None]).square().sum(-1).amin(1).mean())
    assert "loss_inputs" not in nearest
    assert "an output of zeros gets" in made(lambda h, e: (40 * h - X).square().mean())["initial_loss"].title
    assert "initial_loss" not in made(lambda h, e: (h - X).square().mean())


class Deep(nn.Module):
    """Six matrices, held as (in, out) or as convolutions with weight norm."""

    def __init__(self, kind, gain):
        super().__init__()
        self.out, convs = nn.Linear(16, 4), kind == "conv"
        self.weights = nn.ParameterList([] if convs else [gain / 4 * torch.randn(16, 16) for _ in range(6)])
        self.convs = nn.ModuleList([weight_norm(nn.Conv1d(16, 16, 1)) for _ in range(6 * convs)])
        for conv in self.convs:
            nn.init.constant_(conv.parametrizations.weight.original0, gain)

    def forward(self, x):
        for weight in self.weights:
            x = F.relu(x @ weight)
        x = x[..., None]
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.out(x[..., 0])


@pytest.mark.parametrize(("kind", "line"), [("matrix", "model.weights[i]"), ("conv", "original0.data.mul_")])
def test_matrices_that_do_not_fit_what_they_sum_over_are_named_with_their_factor(kind, line):
    torch.manual_seed(0)
    found = answered(Deep(kind, 0.02), X)["ignores_input"]
    assert "times too small" in found.cause
    assert line in code_of(found)
    factors = levels(Deep(kind, 0.02), X)
    assert all(20 < factor < 150 for name, factor in factors.items() if name != "out.weight")
    assert len(factors) == 7
    usual = levels(Deep(kind, 2**0.5), X)
    assert {usual[name] for name in factors if name != "out.weight"} == {1.0}


class Words(nn.Module):
    """Words to classes, read in one of three ways."""

    def __init__(self, read):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(32, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 4)
        self.read = read

    def forward(self, ids):
        x, real = self.emb(ids), (ids != 0).float()[..., None]
        if self.read == "mean":
            return self.out(x.mean(1))
        if self.read == "masked":
            return self.out((x * real).sum(1) / real.sum(1))
        x = self.rnn(x)[0]
        return self.out(x[:, -1] if self.read == "last" else x[torch.arange(len(ids)), (ids != 0).sum(1) - 1])


@pytest.mark.parametrize("read", ["mean", "last", "masked", "real"])
def test_padding_that_counts_is_told(read):
    torch.manual_seed(0)
    found = answered(Words(read), PADDED)
    assert ("padding changes" in found["wrong_influence"].title) if read in ("mean", "last") else not found


def test_outputs_that_are_equal_for_all_examples_are_told():
    assert "pool within each example" in made(lambda h, e: h.mean(0).expand(32, -1))["equal_examples"].prescription.text
    assert "equal_examples" not in made(lambda h, e: h + h.mean(0))
    assert "equal_examples" not in made(lambda h, e: h.mean(0).expand(32, -1), X[:1].expand(32, -1))
    assert "equal_examples" not in made(lambda h, e: h, X + 1e6)


def test_examples_that_are_compared_with_themselves_are_told():
    def pairs(mask):
        def loss(h, e):
            h = F.normalize(h, dim=-1)
            logits = (h @ h.T / 0.1).masked_fill(mask * torch.eye(32).bool(), -1e9)
            return F.cross_entropy(logits, torch.arange(32).roll(16))

        return made(loss)

    assert "most like itself" in pairs(False)["loss_inputs"].title
    assert "loss_inputs" not in pairs(True)


CUTS = {
    "`item`": lambda h, e: h.square().mean() + e.square().sum().item(),
    "`tensor`": lambda h, e: h.square().mean() + torch.tensor(e.tolist()).sum(),
    "`round`": lambda h, e: h.square().mean() + (h.detach() * torch.round(8 * e)).square().mean(),
}


@pytest.mark.parametrize("name", CUTS)
def test_where_a_gradient_is_lost_is_named_with_what_lets_it_through(name):
    found = made(CUTS[name], extra=0.3, size=16)["no_gradient"]
    assert name in found.cause or "`tolist`" in found.cause
    assert ("straight-through" if name == "`round`" else "plain number") in found.prescription.text


def test_a_hinge_that_is_shut_is_told_with_its_way_out():
    found = made(lambda h, e: F.relu(h.tanh().mean(1) - 2.0).mean())["no_gradient"]
    assert "a hinge that is shut" in found.cause
    assert "sign" in found.prescription.text


def test_a_recurrence_that_multiplies_its_state_is_told():
    def steps(factor):
        def run(h, e):
            state = h
            for _ in range(16):
                state = factor * state + 0.1 * h
            return state

        return made(run)

    assert "at each of 16 steps" in steps(1.5)["steps_grow"].title
    assert "steps_grow" not in steps(0.9)
    assert "steps_grow" not in steps(1.0)


def test_a_saturated_candidate_is_told_with_the_order_of_the_gates():
    torch.manual_seed(0)
    model = nn.LSTM(16, 16, batch_first=True)
    with torch.no_grad():
        model.bias_ih_l0[32:48] = -5.0
    found = answered(model, torch.randn(4, 6, 16))["gates_shut"]
    assert "cell values" in found.title
    assert "order: input gate, forget gate" in found.prescription.text


def test_tensors_that_learn_and_are_no_parameters_are_told():
    class Loose(Made):
        def __init__(self, loose):
            super().__init__(lambda h, e: h * self.scale)
            scale = torch.full((16,), 0.5)
            self.scale = scale.requires_grad_() if loose else nn.Parameter(scale)

    torch.manual_seed(0)
    assert "does not know" in answered(Loose(True), X)["lost_modules"].title
    assert "lost_modules" not in answered(Loose(False), X)


def test_later_places_are_looked_for_along_any_axis():
    class Heard(nn.Module):
        def __init__(self, room):
            super().__init__()
            self.emb, self.conv, self.out, self.room = nn.Embedding(32, 8), nn.Conv1d(8, 8, 3), nn.Linear(8, 32), room

        def forward(self, ids, targets):
            x = self.conv(F.pad(self.emb(ids).transpose(1, 2), self.room)).transpose(1, 2)
            return F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())

    ids = torch.randint(32, (3, 13), generator=torch.Generator().manual_seed(1))
    batch = {"ids": ids[:, :-1], "targets": ids[:, 1:]}
    torch.manual_seed(0)
    assert influenced(Heard((1, 1)), batch).where == "conv"
    assert influenced(Heard((2, 0)), batch).seen == 0.0


def test_other_values_of_what_is_never_negative_are_not_either():
    assert bool((other_values(X.abs()) >= 0).all())
    assert bool((other_values(X) < 0).any())


def test_a_softmax_whose_columns_sum_to_one_and_whose_rows_are_summed_over_is_told():
    def attend(axis, mine=True):
        return made(lambda h, e: (h @ h.T).softmax(axis) @ h if mine else (h @ h.T).softmax(axis).T @ h)

    assert "another axis than the keys" in attend(0)["attention_masks"].title
    assert "attention_masks" not in attend(1)
    assert "attention_masks" not in attend(0, False)


def test_a_sum_that_drowns_a_mean_is_told():
    def terms(first, second):
        return made(lambda h, e: first((h - X).square()) + second(h.square()))

    assert "over 512 numbers" in terms(torch.mean, torch.sum)["summed_term"].title
    assert "summed_term" not in terms(torch.sum, torch.sum)
    assert "summed_term" not in terms(torch.mean, lambda h: 1e-4 * h.mean())


def test_sines_that_turn_too_fast_are_told():
    places, scale = torch.linspace(0, 1, 32)[:, None], torch.linspace(0.5, 2, 16)

    def coded(speed):
        torch.manual_seed(0)
        return answered(Made(lambda h, e: h + (speed * (places * scale)).sin()), X)

    assert "turn by" in coded(1e3)["codes"].title
    assert "codes" not in coded(10.0)


@pytest.mark.parametrize(("std", "told"), [(1.0, True), (0.25, False)])
def test_a_tanh_network_that_saturates_over_its_steps_is_told_with_both_matrices(std, told):
    torch.manual_seed(0)
    model = nn.RNN(16, 16, batch_first=True)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        nn.init.normal_(getattr(model, name), std=4 * std if told else std)
    found = answered(model, torch.randn(4, 12, 16))
    assert ("activations" in found) == told
    if told:
        assert "weight_ih_l0" in code_of(found["activations"])
        assert "weight_hh_l0" in code_of(found["activations"])


def test_steps_without_gradients_are_told_from_inputs_that_nothing_reads():
    class Cut(nn.Module):
        def __init__(self, steps):
            super().__init__()
            self.cell, self.out, self.steps = nn.GRUCell(8, 8), nn.Linear(8, 4), steps

        def forward(self, x):
            state = torch.zeros(len(x), 8)
            for step in range(x.shape[1]):
                with torch.set_grad_enabled(torch.is_grad_enabled() and step >= self.steps):
                    state = self.cell(x[:, step], state)
            return self.out(state)

    torch.manual_seed(0)
    x = torch.randn(4, 10, 8)
    assert "under no_grad" in answered(Cut(9), x)["unread_parts"].title
    assert "unread_parts" not in answered(Cut(0), x)


def test_a_frozen_teacher_is_no_moving_target():
    class Taught(nn.Module):
        def __init__(self, frozen):
            super().__init__()
            self.student, self.teacher = nn.Linear(16, 4), nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
            self.teacher.requires_grad_(not frozen)

        def forward(self, x):
            return F.mse_loss(self.student(x), self.teacher(x))

    torch.manual_seed(0)
    assert "loss_inputs" in answered(Taught(False), X)
    assert "loss_inputs" not in answered(Taught(True), X)


def test_every_token_id_has_another_value():
    ids = torch.arange(7)
    assert bool((other_values(ids) != ids).all())
    assert sorted(other_values(ids).tolist()) == ids.tolist()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_a_model_that_differentiates_in_its_forward_is_checked_and_a_zero_derivative_is_told(activation):
    class Curved(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(1, 16), activation(), nn.Linear(16, 1))

        def forward(self, x):
            x = x.detach().requires_grad_()
            slope = torch.autograd.grad(self.body(x).sum(), x, create_graph=True)[0]
            curve = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
            return (curve + x.sin()).square().mean() + self.body(torch.ones(1, 1)).square().mean()

    torch.manual_seed(0)
    found = answered(Curved(), torch.linspace(-1, 1, 20)[:, None])
    assert set(found) == ({"flat_derivative"} if activation is nn.ReLU else set())


def test_an_input_that_is_next_to_nothing_is_told():
    assert "Biases and all that is added drown it" in made(lambda h, e: h.relu(), 1e-6 * X)["input_scale"].cause
    assert "input_scale" not in made(lambda h, e: h.relu(), 1e-2 * X)


def test_a_derivative_without_a_graph_is_told():
    class Penalized(nn.Module):
        def __init__(self, graph):
            super().__init__()
            self.critic, self.graph = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)), graph

        def forward(self, x):
            x = x.detach().requires_grad_()
            slope = torch.autograd.grad(self.critic(x).sum(), x, create_graph=self.graph)[0]
            return self.critic(x).mean() + (slope.norm(dim=1) - 1).square().mean()

    torch.manual_seed(0)
    assert "create_graph" in answered(Penalized(False), X)["flat_derivative"].prescription.text
    assert "flat_derivative" not in answered(Penalized(True), X)


def test_a_batch_that_a_raw_matrix_multiplies_makes_a_signal():
    class Raw(nn.Module):
        def __init__(self, std):
            super().__init__()
            self.weight = nn.Parameter(std * torch.randn(16, 16))

        def forward(self, x):
            return (x @ self.weight - X).abs().mean()

    torch.manual_seed(0)
    assert "starts at" in answered(Raw(40.0), X)["initial_loss"].title
    assert not answered(Raw(0.25), X)


def test_what_is_large_itself_is_not_laid_to_the_matrix_that_reads_it():
    torch.manual_seed(0)
    assert set(levels(nn.Linear(16, 16), 1e4 * X).values()) == {1.0}
