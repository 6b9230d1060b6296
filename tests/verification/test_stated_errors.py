"""Numbers better than a guess state an error, and the error is right."""

import math

import pytest
import torch
from torch import nn

import sigprop
from sigprop.results import ParameterRow, Profile
from sigprop.results.stated_errors import BY_STATUS, stated_columns
from sigprop.theory import Status
from sigprop.verification.verdict import judged, left_open
from sigprop.verification.verification import _judged_row

X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
TRIALS = 1500


class Unfollowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.second(torch.linalg.svdvals(self.first(x)[:, :6, None] @ x[:, None, :6]).repeat(1, 11)[:, :64])


def perceptron():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))


def rows_with_numbers(profile):
    for row in (*profile.sites, *profile.parameters):
        for column in stated_columns(row):
            if math.isfinite(getattr(row, column)) and getattr(row, column) != 0.0:
                yield row, column


@pytest.mark.parametrize("verify", [0, 12])
@pytest.mark.parametrize("make", [perceptron, Unfollowed])
def test_every_number_but_a_guess_states_an_error(make, verify):
    profile = sigprop.predict(make, X, loss="noise", verify=verify)
    found = list(rows_with_numbers(profile))
    assert len(found) > 6
    for row, column in found:
        assert (column in row.stated_errors) == (row.status != "assumed"), (row.name, column, row.status)
        assert 0.0 <= row.stated_errors.get(column, 0.0) < 10.0


def test_every_status_of_theory_states_one_error_and_a_guess_none():
    assert set(BY_STATUS) == {str(status) for status in Status if status is not Status.ASSUMED}


def test_long_sequences_state_none():
    tokens = torch.arange(96)[None] % 50
    model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    profile = sigprop.predict(model, tokens, loss="noise", tokens=32, verify=0)
    assert {row.status for row in profile.sites} == {"assumed"}
    assert not any(row.stated_errors for row in (*profile.sites, *profile.parameters))


def test_stated_errors_survive_a_file(tmp_path):
    profile = sigprop.predict(perceptron, X, loss="noise", verify=0)
    profile.to_json(tmp_path / "profile.json")
    again = Profile.from_json(tmp_path / "profile.json")
    assert [row.stated_errors for row in again.sites] == [row.stated_errors for row in profile.sites]


@pytest.mark.parametrize(("spread", "count"), [(0.05, 6), (0.3, 6), (0.3, 24), (0.7, 24)])
def test_the_truth_is_within_what_draws_leave_open_in_99_of_100_cases(spread, count):
    """Lognormal draws, as gradients of deep networks are; three standard errors of 1,500 trials are 0.8 %.

    With a spread of 0.7 the plain interval by Student's t holds in 95 %.
    """
    generator = torch.Generator().manual_seed(1)
    draws = (spread * torch.randn(TRIALS, count, generator=generator, dtype=torch.float64) - spread**2 / 2).exp()
    means, bounds = draws.mean(1), torch.tensor([left_open(row) for row in draws.tolist()])
    share = float(((1.0 - means).abs() <= bounds * means).double().mean())
    assert share > 0.99 - 3.0 * math.sqrt(0.99 * 0.01 / TRIALS) - (0.005 if spread > 0.5 else 0.0)


def test_what_agrees_states_its_distance_and_the_noise():
    draws = [0.9, 1.0, 1.1, 0.95, 1.05, 1.0]
    verdict = judged(1.05, draws)
    assert verdict.stated_error == pytest.approx((0.05 + left_open(draws)) / 1.05)


def test_what_few_draws_doubt_reaches_to_theory():
    """Of many numbers that theory has right those are doubted whose draws are off: the error must say so."""
    generator, kept = torch.Generator().manual_seed(3), []
    for _ in range(TRIALS):
        draws = (0.4 * torch.randn(6, generator=generator, dtype=torch.float64) - 0.08).exp().tolist()
        verdict = judged(1.0, draws)
        if verdict.is_doubtful:
            drawn = ParameterRow("weight", (8, 8), grad_second_moment=verdict.simulated)
            row = ParameterRow("weight", (8, 8), grad_second_moment=1.0, status="fitted")
            row.stated_errors = {"grad_second_moment": 0.15}
            row = _judged_row(row, drawn, {"grad_second_moment": verdict}, trusted=True)
            error = row.stated_errors["grad_second_moment"]
            kept.append(abs(1.0 - row.grad_second_moment) <= error * row.grad_second_moment)
    assert len(kept) > 200
    assert sum(kept) / len(kept) > 0.99


@pytest.mark.parametrize("draws", [[0.9999871] * 6, [0.9999871], [1.0, 1.0 + 1e-6, 1.0 - 1e-6]])
def test_draws_that_agree_to_the_last_digit_do_not_promise_it(draws):
    """The variance behind a norm hardly varies; what six draws of single precision leave open of it is not nothing."""
    assert judged(1.0, draws).stated_error >= 0.005


def test_what_single_precision_does_not_hold_is_a_guess():
    """A stack that shrinks its signal below the smallest number there is: the real model's variance is zero."""
    layers = [nn.Linear(8, 8, bias=False) for _ in range(12)]
    model = nn.Sequential(*layers)
    for layer in layers:
        nn.init.normal_(layer.weight, std=1e-4)
    found = sigprop.predict(model, torch.randn(4, 8), loss="noise", verify=0)
    rows = {row.name: row for row in found.sites}
    assert 0.0 < rows["11"].variance < 1e-70
    assert (rows["11"].status, "variance" in rows["11"].stated_errors) == ("assumed", False)
    assert (rows["0"].status == "assumed", "variance" in rows["0"].stated_errors) == (True, True)
    assert rows["6"].status != "assumed"
