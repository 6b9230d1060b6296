"""Rules for batch size, horizon and decay; zero starts; rates by role; schedules: each against its formula."""

import pytest
import torch

import sigprop as sp
from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.models import build
from sigprop.plans.scaling import at_batch, at_horizon, averaging_decay, independent_decay
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.budget import AdamSettings

IDS = torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(0))


def gpt(width=64, depth=2, **settings):
    return build("transformer", vocabulary=19, context=12, width=width, depth=depth, heads=4, **settings)


def test_the_square_root_rule_of_batches():
    """Malladi et al. 2022, definition 4.3: kappa = 4."""
    found = at_batch(AdamSettings(1e-3, (0.9, 0.99), 1e-8), 256, 64)
    assert found.lr == pytest.approx(2e-3)
    assert found.betas == pytest.approx((0.6, 0.96))
    assert found.eps == pytest.approx(5e-9)
    with pytest.raises(InputError, match="at most 640"):
        at_batch(AdamSettings(1e-3, (0.9, 0.99), 1e-8), 1024, 64)


def test_horizons_and_decays():
    assert at_horizon(1e-3, 400, 100) == pytest.approx(5e-4)
    assert at_horizon(1e-3, 400, 100, exponent=0.32) == pytest.approx(1e-3 * 4**-0.32)
    decay = averaging_decay(1e-3, 10_000, 0.1)
    assert 1 / (1e-3 * decay) == pytest.approx(1_000)
    assert 1e-3 * independent_decay(1e-4, 1e-3) == pytest.approx(1e-4)


def test_a_plan_keeps_the_averaging_time_of_all_matrices():
    model = gpt(256)
    groups = sp.plan(model, "unit", width="mup", batch=IDS).param_groups(model, lr=1e-2, weight_decay=0.1)
    products = {round(group["lr"] * group["weight_decay"], 12) for group in groups if group["weight_decay"]}
    assert products == {1e-3}


def test_complete_p_is_the_linear_depth_rule():
    """Dey et al. 2025, table 1 with alpha = 1: width times 4, depth times 4, AdamW."""
    base, model = gpt(16, 2), gpt(64, 8)
    made = prescribe(model, "mup", base=base, depth="linear", batch=IDS)
    hidden, norm = made["blocks.3.mlp.up.weight"], made["blocks.3.mlp_norm.weight"]
    assert (hidden.lr, hidden.weight_decay, hidden.eps) == pytest.approx((1 / 4, 4.0, 1 / 16))
    assert (norm.lr, norm.eps) == pytest.approx((1.0, 1 / 16))
    table, readout = made["token_embedding.weight"], made["head.weight"]
    assert (table.lr, table.eps) == pytest.approx((1.0, 1 / 4))
    assert (readout.lr, readout.eps) == pytest.approx((1 / 4, 1.0))
    ends = made["blocks.3.mlp.down.weight"]
    assert (ends.lr, ends.eps) == pytest.approx((1 / 16, 1 / 4))  # the branch's 1/4 folded in: lr x 1/4, eps x 4
    assert ends.lr * ends.weight_decay == pytest.approx(1.0)


@pytest.mark.parametrize("zeros", ["readout", "query", "branch ends"])
def test_zero_starts(zeros):
    model = gpt()
    made = sp.plan(model, "unit", width="mup", zeros=[zeros], batch=IDS)
    names = {
        row.name for row in made if row.init.kind == "constant" and row.init.value == 0.0 and "bias" not in row.name
    }
    wanted = {
        "readout": "head.weight",
        "query": "blocks.1.attention.query.weight",
        "branch ends": "blocks.1.mlp.down.weight",
    }
    assert wanted[zeros] in names
    logits = made.apply_(model)(IDS)
    if zeros == "readout":
        assert not logits.any()
    assert made.suggested_lr().lr == pytest.approx(1 / 128)


def test_zero_starts_that_cannot_be():
    with pytest.raises(UnknownNameError, match="zeros"):
        sp.plan(gpt(), "unit", zeros=["key"], batch=IDS)
    with pytest.raises(UnsupportedError, match="tied or fused"):
        sp.plan(gpt(tied_head=True), "unit", zeros=["readout"], batch=IDS)
    with pytest.raises(UnsupportedError, match="tied or fused"):
        sp.plan(gpt(fused_qkv=True), "unit", zeros=["query"], batch=IDS)


def test_base_rates_by_role_and_by_optimizer():
    model = gpt()
    made = sp.plan(model, "unit", width="mup", batch=IDS)
    groups = made.param_groups(model, lr={"embedding": 0.5, "default": 0.01})
    rates = {name: group["lr"] for group in groups for name in group["param_names"]}
    assert rates["token_embedding.weight"] == pytest.approx(0.5 * made["token_embedding.weight"].lr)
    assert rates["blocks.0.mlp.up.weight"] == pytest.approx(0.01 * made["blocks.0.mlp.up.weight"].lr)
    made = sp.plan(model, "unit", width="mup", optimizer="muon", batch=IDS)
    muon, adamw = made.optimizers(model, lr={"muon": 0.02, "default": 0.003})
    assert max(group["lr"] for group in muon.param_groups) > 0.01
    rates = {name: group["lr"] for group in adamw.param_groups for name in group["param_names"]}
    for name in ("token_embedding.weight", "position_embedding.weight"):
        assert rates[name] == pytest.approx(0.003 * made[name].lr)
    with pytest.raises(UnknownNameError, match="role of a learning rate"):
        made.param_groups(model, lr={"embeding": 0.5, "default": 0.01})
    with pytest.raises(InputError, match="default"):
        made.param_groups(model, lr={"embedding": 0.5})


def test_a_schedule_keeps_the_factors_where_torchs_cosine_floor_does_not():
    model = gpt(256)
    made = sp.plan(model, "unit", width="mup", batch=IDS)

    def ratio(schedule):
        optimizer = torch.optim.AdamW(made.param_groups(model, lr=0.01))
        rates = [group["lr"] for group in optimizer.param_groups]
        stepper = schedule(optimizer)
        for _ in range(20):
            optimizer.step()
            stepper.step()
        return [group["lr"] / rate for group, rate in zip(optimizer.param_groups, rates, strict=True)]

    own = ratio(lambda optimizer: made.scheduler(optimizer, steps=20, warmup=0.2, final=0.1))
    assert own == pytest.approx([0.1] * len(own))
    floor = ratio(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20, eta_min=1e-3))
    assert max(floor) > 1.5 * min(floor)
