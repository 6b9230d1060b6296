"""Verdicts: a right number is left in peace, a wrong one is caught, skewed draws deceive nobody."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import sigprop
from sigprop.verification.verdict import Judgement, judged


def verdicts(ratio, spread, count, trials=2000, seed=0):
    """Judgements of a number that is `ratio` of the true mean of lognormal draws."""
    draws = np.random.default_rng(seed).lognormal(-(spread**2) / 2, spread, (trials, count))
    return [judged(ratio, list(row)).judgement for row in draws]


@pytest.mark.parametrize("count", [6, 12, 24])
@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_a_right_number_is_disputed_in_one_of_a_thousand_cases_at_most(spread, count):
    found = verdicts(1.0, spread, count)
    assert found.count(Judgement.DIFFERS) <= 0.001 * len(found) + 4 * math.sqrt(0.001 * len(found))


@pytest.mark.parametrize(("spread", "count"), [(0.05, 12), (0.1, 24), (0.15, 48)])
@pytest.mark.parametrize("ratio", [0.75, 1.3])
def test_a_wrong_number_is_caught(ratio, spread, count):
    found = verdicts(ratio, spread, count, 500)
    assert found.count(Judgement.DIFFERS) > 0.8 * len(found)


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("count", [6, 24])
def test_a_number_off_by_a_third_is_hardly_ever_called_right(spread, count):
    found = verdicts(1.35, spread, count)
    assert found.count(Judgement.AGREES) <= 0.005 * len(found)


def test_rounding_noise_is_zero():
    assert judged(0.0, [1e-20, 2e-20], floor=1e-15).judgement is Judgement.AGREES
    assert judged(1.0, [1e-20, 2e-20, 3e-20, 2e-20, 1e-20, 2e-20], floor=1e-15).judgement is Judgement.DIFFERS


def test_correlations_are_compared_absolutely():
    draws = [0.01, -0.02, 0.015, 0.0, -0.01, 0.005]
    assert judged(0.02, draws, scale=0.5).judgement is Judgement.AGREES
    assert judged(0.4, draws, scale=0.5).judgement is Judgement.DIFFERS


def test_a_number_off_by_more_than_a_tenth_does_not_agree():
    """Even where it differs by no more than a fifth for sure: the next draws may say more."""
    draws = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995]
    assert judged(1.08, draws).judgement is Judgement.AGREES
    assert judged(1.15, draws).judgement is not Judgement.AGREES


class Masked(nn.Module):
    """Scores in which a module writes the smallest number there is; a branch that a layer scale makes tiny."""

    def __init__(self):
        super().__init__()
        self.mask, self.value, self.head = Fill(), nn.Linear(16, 16), nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.full((16,), 1e-7))

    def forward(self, x):
        x = x + self.scale * torch.tanh(self.value(x))
        return self.head(self.mask(x @ x.mT).softmax(-1) @ x)


class Fill(nn.Module):
    def forward(self, scores):
        return scores.masked_fill(torch.ones(8, 8).triu(1).bool(), torch.finfo(scores.dtype).min)


def test_a_number_is_judged_beside_one_that_is_huge():
    """The floor of rounding was taken from the largest number of all: a mask, or a gradient without a layer scale,
    and everything agreed with everything."""
    profile = sigprop.predict(Masked, torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0)), verify=6)
    judged = {row.name: row.verification for row in (*profile.sites, *profile.parameters)}
    assert judged["value"]["variance"]["z"] != 0.0
    assert judged["value"]["grad_variance"]["z"] != 0.0
    assert judged["value.weight"]["grad_second_moment"]["z"] != 0.0
