"""Every recipe has a paper, a test and clear refusals; plans serve models on meta."""

import importlib
import json
import math
import pkgutil

import pytest
import torch

import tests.plans.recipes
from sigprop.distributions import build as build_on_meta
from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.recipes import RECIPES, plan
from sigprop.plans.recipes.planned_states import predict_plan
from sigprop.plans.recipes.rows import recipe
from sigprop.results.files import written
from tests.plans.recipes.shared import WIDTH, drawn, ids, model_of, raw, structure_of


def test_every_recipe_has_a_test_and_a_description():
    modules = [
        importlib.import_module(f"tests.plans.recipes.{item.name}")
        for item in pkgutil.iter_modules(tests.plans.recipes.__path__)
    ]
    marks = [getattr(value, "recipes", ()) for module in modules for value in vars(module).values() if callable(value)]
    assert set(RECIPES) == {name for names in marks for name in names}
    for item in RECIPES.values():
        assert item.paper
        assert item.applies_to
        assert item.effect
        assert len(item.effect) < 140


def test_registry_refuses_duplicates_and_unknown_names():
    with pytest.raises(InputError, match="already registered"):
        recipe("xavier", paper="", applies_to="", effect="")(lambda structure: Plan([]))
    with pytest.raises(UnknownNameError, match="deepscale"):
        RECIPES["deepscael"]


def test_unknown_options_are_named():
    with pytest.raises(InputError, match="strength"):
        raw("lecun", strength=2)


@pytest.mark.parametrize(
    ("name", "placement", "message"),
    [
        ("deepnorm", "pre", "Post-LN"),
        ("admin", "none", "Post-LN"),
        ("layer_scale", "post", "Pre-LN"),
        ("fixup", "pre", "no norm"),
        ("t_fixup", "post", "no norm"),
    ],
)
def test_recipes_refuse_other_architectures(name, placement, message):
    with pytest.raises(UnsupportedError, match=message):
        raw(name, placement)


@pytest.mark.parametrize("name", ["deepscale", "small_init", "noci", "value_skipinit", "ds_init"])
def test_recipes_for_transformers_refuse_an_mlp(name):
    model = build("mlp", depth=3, width=16, inputs=16)
    with pytest.raises(UnsupportedError, match="Transformer"):
        plan(model, name, batch=torch.randn(4, 16))


def test_learned_scales_ask_for_surgery():
    for name in ("rezero", "layer_scale", "value_skipinit"):
        with pytest.raises(UnsupportedError, match="surgery=True"):
            plan(model_of(), name, structure=structure_of())


def test_a_model_built_on_meta_is_materialized_by_its_plan():
    model = build_on_meta(model_of)
    made = plan(model, "unit", k=1.0, batch=ids())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    drawn(made, model)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert torch.equal(model.final_norm.weight, torch.ones(WIDTH))


def test_a_prediction_is_plain_data_where_nothing_comes_back():
    found = json.loads(written(predict_plan(structure_of("none"), "fixup").to_dict()))
    assert found["gradient_growth"] is None
    assert found["forward_growth"] == pytest.approx(1.0)
