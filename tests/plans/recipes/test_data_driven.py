"""Recipes that run the model on a batch: they reach on it what they promise."""

import math

import pytest
import torch
from torch import nn

from sigprop.models import build
from sigprop.plans.recipes import plan
from tests.plans.recipes.shared import DEPTH, drawn, identity, ids, model_of


@identity("admin")
def test_admin_skips_weigh_as_much_as_all_before():
    model = model_of("post")
    made = plan(model, "admin", batch=ids())
    twin = model_of("post")
    drawn(plan(twin, "xavier", batch=ids()), twin)
    seen = []
    for block in twin.blocks:
        for branch in (block.attention, block.mlp):
            branch.register_forward_hook(lambda module, inputs, output: seen.append(float(output.double().var())))
    with torch.no_grad():
        twin(ids())
    expected = [math.sqrt(1 + sum(seen[:i])) for i in range(len(seen))]
    assert [row.skip for row in made.junctions] == pytest.approx(expected)
    assert [row.branch for row in made.junctions] == [1.0] * 2 * DEPTH


@pytest.mark.parametrize("recipe", ["admin", "lsuv"])
def test_data_may_be_a_loader(recipe):
    model = model_of("post")
    one, same = (plan(model, recipe, batch=ids(), data=data) for data in (iter([ids()]), ids()))
    assert one.diff(same) == []


@identity("lsuv")
def test_lsuv_gives_unit_outputs_on_its_batch():
    model = model_of("none")
    drawn(plan(model, "lsuv", batch=ids()), model, seed=0)
    spreads = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, i, output, name=name: spreads.update({name: float(output.var())}))
    with torch.no_grad():
        model(ids())
    assert spreads
    assert all(value == pytest.approx(1.0, rel=1e-3) for value in spreads.values())


@identity("critical")
def test_critical_finds_the_gain_of_relu():
    model = build("mlp", depth=12, width=256, inputs=256, activation="relu")
    batch = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    made = plan(model, "critical", base="lecun", batch=batch, probes=16)
    assert made.meta["gain"] == pytest.approx(math.sqrt(2), rel=0.03)
