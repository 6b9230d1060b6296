"""Random networks: no raw error, and no row that looks sure and is wrong."""

import pytest
import torch
from hypothesis import note

import sigprop as sp
from tests.robustness.fuzz import CASES, drawn, judged, wrong_rows
from tests.robustness.networks import IDIOMS, PARTS, Recipe, ids
from tests.robustness.scale import cases


@drawn(cases(4, CASES))
def test_a_random_network_is_predicted_or_refused_and_never_surely_wrong(recipe):
    verdict, why = judged(recipe, verify=cases(6, 24))
    note(f"{verdict}: {why}")
    assert verdict != "wrong"


@pytest.mark.parametrize("word", PARTS)
def test_every_part_runs(word):
    assert Recipe((word,), 16, "layer", "pre", "torch")()(ids()).shape == (2, 4, 10)


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
