"""Verdicts: a right number is left in peace, a wrong one is caught, skewed draws deceive nobody."""

import math

import numpy as np
import pytest

from sigprop.simulate.verdict import Judgement, judged


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
