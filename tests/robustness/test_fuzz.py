"""Random networks: no raw error, and no row that looks sure and is wrong."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings

import sigprop as sp
from sigprop.errors import SigpropError
from tests.robustness.networks import IDIOMS, PARTS, Recipe, ids, recipes
from tests.robustness.scale import cases

SURE = ("exact", "asymptotic", "quadrature", "sampled", "fitted", "verified")
ALLOWED, ERRORS = 0.30, 5.0
FIRST, CONFIRM = 8, 64


def wrong_rows(profile, actual):
    """Rows marked better than assumed that are off by more than 30 % and five standard errors."""
    found = []
    pairs = [(row, actual, "variance", "grad_variance") for row in profile.sites]
    pairs += [(row, actual, "grad_second_moment") for row in profile.parameters]
    for row, measured, *columns in pairs:
        other = _named(measured, row)
        for column in columns if other is not None and row.status in SURE else ():
            value, truth = getattr(row, column), getattr(other, column)
            error = math.hypot(other.errors.get(column, 0.0), row.errors.get(column, 0.0))
            if truth > 1e-12 and abs(value - truth) > max(ALLOWED * truth, ERRORS * error):
                found.append(f"{row.name} {column}: {value:.3g} ({row.status}), measured {truth:.3g} ± {error:.1g}")
    return found


def _named(profile, row):
    table = profile.sites if hasattr(row, "depth") else profile.parameters
    return next((other for other in table if other.name == row.name), None)


@settings(
    max_examples=cases(4, 500), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(recipe=recipes)
def test_a_random_network_is_predicted_or_refused_and_never_surely_wrong(recipe):
    batch = ids()
    torch.manual_seed(0)
    try:
        profile = sp.predict(recipe(), batch, verify=cases(6, 24))
    except SigpropError as error:
        note(f"refused: {error}")
        return
    if not wrong_rows(profile, sp.measure(None, batch, build=recipe, seeds=range(10_000, 10_000 + FIRST))):
        return
    confirmed = sp.measure(None, batch, build=recipe, seeds=range(20_000, 20_000 + CONFIRM))
    assert wrong_rows(profile, confirmed) == []


@pytest.mark.parametrize("word", PARTS)
def test_every_part_runs(word):
    assert Recipe((word,), 16, "layer", "pre", "torch")()(ids()).shape == (2, 6, 10)


@pytest.mark.parametrize("idiom", IDIOMS)
def test_every_idiom_draws_anew(idiom):
    recipe = Recipe(("linear",), 16, "layer", "pre", idiom)
    torch.manual_seed(0)
    first, second = recipe()[1].weight, recipe()[1].weight
    assert not torch.equal(first, second)


def test_a_sure_row_that_is_wrong_is_seen():
    recipe, batch = Recipe(("linear",), 16, "layer", "pre", "torch"), ids()
    actual = sp.measure(None, batch, build=recipe, seeds=8)
    profile = sp.predict(recipe(), batch, verify=0)
    profile.sites[1].variance *= 3.0
    profile.sites[1].status = "fitted"
    assert any(profile.sites[1].name in line for line in wrong_rows(profile, actual))
