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
    given = case.make() if case.as_module else case.make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile = sp.predict(given, case.batch, loss=case.loss)
        found = _wrong_rows(profile, case, seeds, 90_000)
        return found & _wrong_rows(profile, case, 3 * seeds, 95_000) if found else found


def _wrong_rows(profile, case, seeds, first):
    loss = None if case.loss == "noise" else case.loss
    rows = compared(profile, witnessed(case.make, case.batch, loss, seeds, first))
    told = _how_well_weights_tell_their_laws(case.make()) if case.as_module else 0.0
    return {
        (name, column, status)
        for name, column, error, spread, status in rows
        if status != "assumed" and (error is None or abs(error) > max(0.2, 5 * math.hypot(spread, told)))
    }


def _how_well_weights_tell_their_laws(model):
    """A module that is given has one draw of weights: 96 entries tell their variance to 15 %, and errors multiply."""
    return math.sqrt(sum(2 / parameter.numel() for parameter in model.parameters() if parameter.dim() > 1))


@pytest.mark.parametrize("number", SHORT)
def test_no_confident_row_is_contradicted(number):
    assert not contradicted(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", LONG)
def test_no_confident_row_is_contradicted_in_two_hundred_networks(number):
    assert not contradicted(number)
