"""A learning rate to start with: the one at which an aligned step moves a matrix's output by as much as it puts out."""

import json
import math
from pathlib import Path
from statistics import median

import pytest
import torch

import sigprop as sp
from sigprop.errors import InputError, UnsupportedError
from sigprop.models import build
from sigprop.plans import Plan


def gpt(width=64, depth=2, **settings):
    return build("transformer", vocabulary=19, context=12, width=width, depth=depth, heads=4, **settings)


IDS = torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("width", [32, 256])
def test_unit_with_the_width_rule_has_one_rate_at_every_width(width):
    suggested = sp.plan(gpt(width), "unit", width="mup", batch=IDS).suggested_lr()
    assert suggested.lr == float(suggested) == pytest.approx(1 / 128)
    assert suggested.responses["hidden"] == pytest.approx(1.0)


def test_it_is_the_size_of_a_matrix_over_the_root_of_what_it_reads():
    model = gpt(64)
    size = model.blocks[0].mlp.up.weight.square().mean().sqrt().item()
    suggested = sp.plan(model, "own", batch=IDS).suggested_lr()
    assert suggested.lr == pytest.approx(size / math.sqrt(64), rel=0.02)


def test_the_response_is_that_of_an_aligned_sign_step():
    """Of 200 draws: the output of `W` against that of `lr sign(x)` in every row."""
    fan_in, size, lr = 128, 0.05, 0.003
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, fan_in, generator=generator)
    own = torch.einsum("noi,ni->no", size * torch.randn(200, 16, fan_in, generator=generator), x)
    moved = lr * x.abs().sum(-1)
    ratios = moved.square() / own.square().mean(-1)
    wanted = (lr * math.sqrt(fan_in) / size) ** 2 * (2 / math.pi)  # sign(x) . x / |x| sqrt(f) is sqrt(2 / pi), not one
    assert abs(ratios.mean() - wanted * 16 / 14) < 4 * ratios.std() / math.sqrt(200)


def test_fewer_targets_ask_for_a_smaller_rate_and_more_for_no_larger_one():
    plan = sp.plan(gpt(), "unit", width="mup", batch=IDS)
    few, usual, many = (plan.suggested_lr(targets).lr for targets in (256, 4096, 65536))
    assert few < usual == many


def test_a_folded_scale_cancels():
    plain = sp.plan(gpt(depth=4), "unit", width="mup", batch=IDS).suggested_lr()
    deep = sp.plan(gpt(depth=8), "unit", width="mup", batch=IDS).suggested_lr()
    assert plain.responses["output"] == pytest.approx(deep.responses["output"], rel=0.05)


def test_it_travels_with_the_plan_and_shows_itself():
    plan = Plan.from_json(sp.plan(gpt(), "unit", width="mup", batch=IDS).to_json())
    assert str(plan.suggested_lr()).startswith("lr 0.0078 (nine of ten swept optima lie within a factor of")
    carried = sp.plan(gpt(128), "mup", base=gpt(32), batch=IDS).suggested_lr()
    assert carried.lr == pytest.approx(sp.plan(gpt(32), "own", batch=IDS).suggested_lr().lr, rel=0.05)


def swept():
    points = json.loads((Path(__file__).parents[3] / "docs/data/suggested_rates.json").read_text())["points"]
    return [point for point in points if not point["open"] and point["best"] is not None]


def test_a_depth_rule_takes_the_middle_of_what_was_swept_under_it_and_others_are_refused():
    """Sixteen and more layers under `linear` wanted twice the rate: the response does not see a branch's scale."""
    made = sp.plan(gpt(depth=4), "unit", width="mup", depth="linear", batch=IDS).suggested_lr()
    found = [2 ** (item["best"] - item["forecast"]) for item in swept() if item["scheme"] == "mup+linear"]
    assert made.lr * 128 == pytest.approx(median(found), rel=0.05)
    assert sum(1 / made.within <= ratio / (made.lr * 128) <= made.within for ratio in found) >= 0.9 * len(found)
    assert "fitted" in str(made)
    with pytest.raises(UnsupportedError, match=r"depth='sqrt': no optimum was swept"):
        sp.plan(gpt(depth=4), "unit", width="mup", depth="sqrt", batch=IDS).suggested_lr()


def test_post_norm_models_take_the_middle_of_their_swept_optima_and_advise_on_the_old_rate():
    """Theory gives no rate within a factor of two there; all swept optima lay below it."""
    plan = Plan.from_json(sp.plan(gpt(norm_placement="post"), "unit", width="mup", batch=IDS).to_json())
    made = plan.suggested_lr()
    found = [2 ** (item["best"] - item["forecast"]) for item in swept() if item["family"] == "postln"]
    assert made.lr * 128 == pytest.approx(median(found), rel=0.05)
    assert sum(1 / made.within <= ratio / (made.lr * 128) <= made.within for ratio in found) >= 0.9 * len(found)
    assert plan.suggested_lr(targets=256).lr == pytest.approx(made.lr / 2)
    assert "too high" in made.advise(0.03)
    assert "may stay" in made.advise(made.lr)
    assert "unused" in made.advise(1e-5)


@pytest.mark.parametrize("optimizer", ["muon", "muon:rms", "muon:unit", "normuon", "muonh"])
def test_muon_moves_what_matrices_put_out_by_the_same_share(optimizer):
    """A measured step: the largest change of an output of unit inputs, over the output of random ones, is 1/32."""
    torch.manual_seed(0)
    model = gpt(128)
    plan = sp.plan(model, "unit", width="mup", optimizer=optimizer, batch=IDS)
    plan.apply_(model)
    name = "blocks.0.mlp.up.weight" if "blocks.0.mlp.up.weight" in dict(model.named_parameters()) else None
    name = name or next(row.name for row in plan if row.role == "query_key")
    weight = dict(model.named_parameters())[name]
    before = weight.detach().clone()
    first, *_ = plan.optimizers(model, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    first.step()
    moved = torch.linalg.matrix_norm(weight.detach() - before, 2)
    shown = before.norm() / math.sqrt(before.shape[1])
    assert float(moved / shown) == pytest.approx(1 / 32, rel=0.35)  # Newton-Schulz leaves singular values of 0.7 to 1.2


@pytest.mark.parametrize("optimizer", ["momentum", "lion", "adafactor"])
def test_optimizers_without_swept_rates_are_refused(optimizer):
    with pytest.raises(UnsupportedError, match="swept rates of adamw and adam only"):
        sp.plan(gpt(), "unit", width="mup", optimizer=optimizer, batch=IDS).suggested_lr()


def test_clear_errors():
    plan = sp.plan(gpt(), "unit", width="mup", batch=IDS)
    with pytest.raises(InputError, match="targets"):
        plan.suggested_lr(0)
    with pytest.raises(UnsupportedError, match="sweep the rate"):
        Plan(plan.parameters, meta={"optimizer": "adamw"}).suggested_lr()
