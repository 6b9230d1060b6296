"""Random networks: no error but sigprop's own, and no confident row that fresh initializations contradict."""

import math
import warnings

import pytest
import torch

import sigprop as sp
from studies.corpus.run import compared
from studies.corpus.witness import witnessed
from tests.fuzz.networks import network

SHORT = range(6)
LONG = range(1000, 1200)


def contradicted(number, seeds=16):
    """Rows better than `assumed` that are off by a fifth and five standard errors, twice, on different seeds."""
    case = network(number)
    torch.manual_seed(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile = sp.predict(case.make() if case.as_module else case.make, case.batch, loss=case.loss)
        loss = None if case.loss == "noise" else case.loss
        found = None
        for first in (90_000, 95_000):
            rows = compared(
                profile, witnessed(case.make, case.batch, loss, seeds if found is None else 3 * seeds, first)
            )
            wrong = {
                (name, column, status) for name, column, error, spread, status in rows if _wrong(error, spread, status)
            }
            found = wrong if found is None else found & wrong
            if not found:
                return set()
    return found


def _wrong(error, spread, status):
    if status == "assumed":
        return False
    return error is None or (abs(error) > 0.2 and abs(error) > 5 * spread and math.isfinite(error))


@pytest.mark.parametrize("number", SHORT)
def test_no_confident_row_is_contradicted(number):
    assert not contradicted(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", LONG)
def test_no_confident_row_is_contradicted_in_two_hundred_networks(number):
    assert not contradicted(number)
