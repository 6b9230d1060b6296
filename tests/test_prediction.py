"""`predict`: verified where theory is right, disputed where it is wrong, simulated where it cannot follow."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sigprop as sp
from sigprop import prediction
from sigprop.capture import capture
from sigprop.errors import Fault, FaultWarning, InputError, NoRule, TooLarge, UnsupportedError
from tests.capture.networks import Network


class Stack(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.first = nn.Linear(32, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + F.relu(layer(self.norm(x)))
        return self.head(x)


class ThereAndBack(nn.Module):
    """A weight used, and used again transposed: the second use knows the first."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 32) / math.sqrt(32))
        self.head = nn.Linear(32, 32)

    def forward(self, x):
        return self.head(torch.tanh(x @ self.weight.T) @ self.weight)


@pytest.fixture
def batch():
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(0))


def test_right_rows_are_verified(batch):
    profile = sp.predict(Stack, batch)
    rows = [*profile.sites, *profile.parameters]
    assert all(row.status != "disputed" for row in rows)
    assert sum(row.status == "verified" for row in rows) > 0.7 * len(rows)
    found = profile["layers.1"].verification["variance"]
    assert found["predicted"] == profile["layers.1"].variance
    assert abs(found["simulated"] - found["predicted"]) < 6 * found["standard_error"]


@pytest.mark.parametrize("source", [ThereAndBack, ThereAndBack()], ids=["factory", "module"])
def test_a_wrong_theory_is_disputed_and_the_simulated_number_shown(source, batch):
    theory = sp.predict(source, batch, verify=0)
    assert theory["head"].variance < 0.6, "theory follows a weight used twice: another case is needed here"
    row = sp.predict(source, batch)["head"]
    assert row.status == "disputed"
    assert row.verification["variance"]["predicted"] == theory["head"].variance
    measured = sp.measure(None, batch, build=ThereAndBack, seeds=range(50, 80))["head"]
    spread = math.hypot(row.errors["variance"], measured.errors["variance"])
    assert abs(row.variance - measured.variance) < 5 * spread


@pytest.mark.parametrize("source", [Stack, Stack()], ids=["factory", "module"])
@pytest.mark.parametrize("obstacle", [UnsupportedError("no rule for it"), TooLarge("too many positions")])
def test_what_theory_cannot_follow_is_simulated(source, obstacle, batch, monkeypatch):
    def refuse(*args, **kwargs):
        raise obstacle

    monkeypatch.setattr(prediction, "predict_by_theory", refuse)
    profile = sp.predict(source, batch)
    assert {row.status for row in profile.sites} == {"simulated"}
    assert str(obstacle) in profile.meta["theory"]
    measured = sp.measure(None, batch, build=Stack, seeds=range(50, 80))
    for item in profile.compare(measured).differences:
        if item.column in ("variance", "grad_variance"):
            assert abs(item.error) < 5 * item.standard_error + 1e-6


def test_a_fault_is_raised_or_said_aloud(batch, monkeypatch):
    """Every exception of the engine led to a simulation: a bug looked like a slow success."""

    def fail(*args, **kwargs):
        return 1 / 0

    monkeypatch.setattr(prediction, "predict_by_theory", fail)
    with pytest.raises(Fault, match="ZeroDivisionError"):
        sp.predict(Stack, batch)
    monkeypatch.setenv("SIGPROP_RAISE_FAULTS", "0")
    with pytest.warns(FaultWarning, match="fault of sigprop: ZeroDivisionError: division by zero; simulated instead"):
        profile = sp.predict(Stack, batch)
    assert profile.meta["fault"].startswith("fault of sigprop: ZeroDivisionError")
    assert {row.status for row in profile.sites} == {"simulated"}


def test_a_rule_that_fails_is_a_fault_and_a_function_that_does_is_none(batch, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("broken")

    monkeypatch.setitem(capture.RULES._entries, "relu", broken)
    with pytest.raises(Fault, match="relu"):
        sp.predict(Stack, batch)
    with pytest.raises(InputError, match="could not be traced"):
        sp.predict(lambda: Network(lambda m, x: m.layer(x) if x > 0 else x, layer=nn.Linear(32, 4)), batch, verify=0)


def test_a_missing_rule_is_named_with_what_to_do(batch):
    def gradients(m, x):
        y = m.layer(x)
        return torch.autograd.grad(y.sum(), m.layer.weight, create_graph=True)[0]

    make = lambda: Network(gradients, layer=nn.Linear(32, 4))  # noqa: E731
    with pytest.raises(NoRule, match=r"no rule follows .*@sigprop.capture.rule\('grad'\).*docs/do/rules.md"):
        sp.predict(make, batch, verify=0)


def test_without_verification_nothing_is_simulated(batch, monkeypatch):
    def refuse(*args, **kwargs):
        raise NoRule("no rule for it")

    monkeypatch.setattr(prediction, "predict_by_theory", refuse)
    with pytest.raises(NoRule):
        sp.predict(Stack, batch, verify=0)


def test_nothing_is_left_behind(batch):
    model = ThereAndBack()
    before, state, kept = copy.deepcopy(model.state_dict()), torch.get_rng_state(), batch.clone()
    sp.predict(model, batch)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(kept, batch)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_same_call_gives_the_same_numbers(batch):
    model = ThereAndBack()
    torch.manual_seed(1)
    first = sp.predict(model, batch).to_json()
    torch.manual_seed(2)
    assert sp.predict(model, batch).to_json() == first


def test_a_verified_profile_survives_json(batch):
    profile = sp.predict(ThereAndBack(), batch)
    again = sp.Profile.from_json(profile.to_json())
    assert again.to_json() == profile.to_json()
    assert again["head"].verification["variance"] == profile["head"].verification["variance"]


def test_a_model_that_cannot_run_is_refused():
    with pytest.raises(InputError, match="Linear"):
        sp.predict(nn.Linear(8, 16), torch.randn(4, 9))


def test_wrong_options_are_refused_before_anything_runs(batch):
    with pytest.raises(InputError, match="tokens"):
        sp.predict(Stack(), batch, tokens=1)
    with pytest.raises(InputError, match="verify"):
        sp.predict(Stack(), batch, verify=-1)


def test_weights_as_they_are_judge_a_trained_model(batch):
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
    generator = torch.Generator().manual_seed(0)
    for layer in (model[0], model[2]):
        left = torch.randn(layer.out_features, 2, generator=generator)
        right = torch.randn(2, layer.in_features, generator=generator)
        layer.weight.data.copy_(left @ right)
        nn.init.zeros_(layer.bias)
    profile = sp.predict(model, batch)
    assert profile["2"].variance == pytest.approx(sp.measure(model, batch)["2"].variance, rel=0.11)


class Doubled(nn.Module):
    """A hook that its own constructor registers."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(32, 64), nn.Linear(64, 8)
        self.first.register_forward_hook(lambda module, inputs, output: 2 * output)

    def forward(self, x):
        return self.head(F.relu(self.first(x)))


def test_hooks_of_a_constructor_are_run_and_those_on_a_module_make_guesses(batch):
    row = sp.predict(Doubled, batch)["head"]
    measured = sp.measure(None, batch, build=Doubled, seeds=range(50, 80))["head"]
    assert row.status == "disputed"
    assert abs(row.variance - measured.variance) < 5 * math.hypot(row.errors["variance"], measured.errors["variance"])
    for found in sp.predict(Doubled(), batch).sites:
        assert found.status == "assumed"
        assert "hooks on first were not run" in found.reason


@pytest.mark.parametrize("theory", [0.0, 1e10])
def test_a_verification_may_cost_what_theory_did(theory, batch, monkeypatch):
    """Models whose theory took a quarter of a minute were run three times, or not at all, to save seconds."""

    def counted(*args, **options):
        found = by_theory(*args, **options)
        assert found.meta["operations"] > 0.0
        found.meta["operations"] = theory
        return found

    by_theory = prediction.predict_by_theory
    monkeypatch.setattr(prediction, "predict_by_theory", counted)
    monkeypatch.setattr(prediction, "OPERATIONS", 1e4)
    monkeypatch.setattr(prediction, "CHEAP_PARAMETERS", 100.0)
    profile = sp.predict(Stack, batch)
    assert ("verification" in profile.meta) == (theory > 0.0)


def test_guesses_are_worth_more_draws(batch, monkeypatch):
    """Of a model whose theory is all guesses it is said what it does, where that takes four times what is allowed."""
    monkeypatch.setattr(prediction, "CHEAP_PARAMETERS", sum(p.numel() for p in Stack().parameters()) / 3)
    found = {}
    for guessed in (False, True):
        monkeypatch.setattr(prediction, "_is_guessed", lambda _, guessed=guessed: guessed)
        found[guessed] = "verification" in sp.predict(Stack, batch).meta
    assert found == {False: False, True: True}


def test_more_positions_than_are_worth_following_are_simulated(monkeypatch):
    """Four small images through a network that keeps their size took theory three minutes, and a run half a second."""
    images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(prediction, "FOLLOWED_PIXELS", 140)

    def make():
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))

    profile = sp.predict(make, images)
    assert "144 positions" in profile.meta["theory"]
    assert {row.status for row in profile.sites} == {"simulated"}
    assert "theory" not in sp.predict(make, images[:3]).meta


class ManySteps(nn.Module):
    """A recurrence whose state is a function of all steps before."""

    def __init__(self):
        super().__init__()
        self.into, self.state, self.rest = nn.Linear(8, 16), nn.Linear(16, 16), nn.Parameter(torch.randn(16))

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 16)
        for _ in range(30):
            f = torch.sigmoid(self.into(x) + self.state(h))
            h = (h + 0.1 * f * self.rest) / (1 + 0.1 * f)
        return h


def test_a_recurrence_that_theory_would_draw_again_at_every_step_is_run(monkeypatch):
    """Thirty steps took a hundred seconds by theory; running the model takes a hundredth of one."""
    monkeypatch.setattr(prediction, "REPLAYED", 10_000)
    found = sp.predict(ManySteps, torch.randn(4, 8), loss="noise")
    assert "samples all steps before" in found.meta["theory"]
    assert all(row.status in ("simulated", "assumed") for row in found.sites)


@pytest.mark.parametrize("cheap", [10**8, 10])
def test_images_of_many_positions_are_simulated_before_a_kernel_is_made(monkeypatch, cheap):
    """All pairs of 676 positions through three convolutions cost more than the model itself, also of one that is too
    large to be run to verify theory."""
    monkeypatch.setattr(prediction, "CHEAP_PARAMETERS", cheap)
    monkeypatch.setattr("sigprop.theory.ops.sources.ParameterSource.__init__", None)
    build = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))  # noqa: E731
    found = sp.predict(build, torch.randn(1, 3, 28, 28))
    assert "676 positions in '0', of which 640 may be followed" in found.meta["theory"]
    assert {row.status for row in found.sites} == {"simulated"}
