"""An initialization, a width rule, a depth rule and an optimizer in one plan."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.plans.rows import ScalePlan
from sigprop.plans.scaling.tables import table_step, zipf
from sigprop.plans.scaling.training import make_optimizers, make_step
from sigprop.results import Init
from sigprop.structure import read_structure

OPTIMIZERS = ["adamw", "adam", "sgd", "momentum", "lion", "adafactor", "muon:shape", "muon:rms"]


def gpt(width=64, depth=3, **settings):
    return build("transformer", vocabulary=19, context=12, width=width, depth=depth, heads=4, **settings)


def tokens():
    return torch.randint(0, 19, (3, 12), generator=torch.Generator().manual_seed(0))


def train(model, plan, optimizer, steps=4, lr=0.01):
    step, losses = make_step(tokens(), None), []
    optimizers = make_optimizers(optimizer, model, plan, lr, weight_decay=0.1)
    for _ in range(steps):
        _, loss = step(model)
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        losses.append(loss.item())
    return losses


def llama(width, layers=2):
    hf = pytest.importorskip("transformers")
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=64, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers, bos_token_id=0,
            num_attention_heads=width // 32, num_key_value_heads=width // 32, eos_token_id=0, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip


def test_the_rule_that_was_found_by_hand():
    """Matrices at 128 / fan-in times what their fold asks for, tables and gains at 1, the readout drawn smaller."""
    width = 256
    model = llama(width)
    batch = {"input_ids": tokens()}
    plain, made = (sp.plan(model, "unit", batch=batch, width=rule) for rule in (None, "mup"))
    for row in made:
        own = plain[row.name]
        fan_in = row.shape[1] if len(row.shape) > 1 and row.role != "embedding" else 128
        step = table_step(zipf(64), 4096) * row.init.std * 128 if row.role == "embedding" else 1.0
        assert row.lr == pytest.approx(own.lr * step * 128 / fan_in), row.name
        assert row.lr * row.weight_decay == pytest.approx(1.0)
        share = math.sqrt(128 / width) if row.role == "readout" else 1.0
        assert row.init.std == pytest.approx(own.init.std * share)
    assert made["model.norm.weight"].lr == 1.0
    seldom = sp.plan(model, "unit", batch=batch, width="mup", batch_tokens=64)["model.embed_tokens.weight"]
    assert seldom.lr > made["model.embed_tokens.weight"].lr
    plain = sp.plan(model, "unit", batch=batch, width="mup", table_rate="one")["model.embed_tokens.weight"]
    assert plain.lr == 1.0


@pytest.mark.parametrize("tied", [True, False])
def test_positions_and_tied_tables_take_the_rate_of_their_size(tied):
    """Relative to their entries they move like the reference layer; with SGD or a base they do not."""
    model = gpt(tied_head=tied)
    structure = read_structure(model, tokens())
    made = sp.plan(model, "unit", structure=structure, width="mup")
    for name, shaped in (("token_embedding.weight", tied), ("position_embedding.weight", True)):
        row = made[name]
        seen = table_step(zipf(row.shape[0]), 4096) * 128 * row.init.std
        assert row.lr == pytest.approx(row.init.std * math.sqrt(128) if shaped else seen)
        assert row.lr * row.weight_decay == pytest.approx(1.0)
        assert ("size x" in row.why) == shaped
    for options in ({"optimizer": "momentum"}, {"base": gpt(tied_head=tied)}):
        other = sp.plan(model, "unit", structure=structure, width="mup", **options)
        assert not any("size x" in row.why for row in other)


def test_rows_tell_which_part_came_from_where():
    made = sp.plan(gpt(depth=8), "unit", batch=tokens(), width="mup", depth="sqrt", optimizer="adamw")
    row = made["blocks.0.mlp.down.weight"]
    assert row.why.startswith("unit: last weight of a branch, carries x")
    assert "; mup: fan-in x2" in row.why
    assert "; sqrt: layers x2" in row.why
    expected = {"recipe": "unit", "width": "mup", "depth": "sqrt", "optimizer": "adamw", "reference_width": 128}
    assert expected.items() <= made.meta.items()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("recipe", ["unit", "own", "gpt2", "deepscale"])
def test_every_pair_covers_every_parameter(recipe, optimizer):
    model = gpt(width=32, depth=2, tied_head=recipe == "gpt2")
    structure = read_structure(model, tokens())
    for width, depth in ((None, "sqrt"), ("sp", "linear"), ("neural_tangent", "none"), ("mup", "none")):
        made = sp.plan(model, recipe, structure=structure, width=width, depth=depth, optimizer=optimizer)
        assert all(math.isfinite(row.lr) and row.lr > 0 for row in made)
    made.apply_(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert all(math.isfinite(loss) for loss in train(model, made, optimizer, lr=1e-3))
    matrices = [pair for pair in zip(before, model.parameters(), strict=True) if pair[0].dim() > 1]
    assert not any(torch.equal(*pair) for pair in matrices)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "muon:shape"])
def test_at_the_base_all_factors_are_one(optimizer):
    model = gpt()
    plain = sp.plan(model, "unit", batch=tokens(), optimizer=optimizer)
    based = sp.plan(model, "unit", batch=tokens(), optimizer=optimizer, width="mup", base=gpt(), depth="sqrt")
    for left, right in zip(plain, based, strict=True):
        assert left.init == right.init
        assert (left.lr, left.weight_decay, left.eps) == (right.lr, right.weight_decay, right.eps)


def test_a_base_carries_its_rate_to_another_width_and_depth():
    made = sp.plan(gpt(128, 12), "unit", batch=tokens(), width="mup", base=gpt(32, 3), depth="sqrt")
    plain = sp.plan(gpt(128, 12), "unit", batch=tokens())
    ratio = {row.name: row.lr / plain[row.name].lr for row in made}
    assert ratio["blocks.3.mlp.up.weight"] == pytest.approx(1 / 4 / 2)
    assert ratio["head.weight"] == pytest.approx(1 / 4)
    assert ratio["token_embedding.weight"] == pytest.approx(1.0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_folded_and_scaled_junctions_train_alike_under_a_width_rule(optimizer, monkeypatch):
    """Weights only against scales in the forward pass: one trajectory; Muon without its bfloat16."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda values: values)
    monkeypatch.setattr(torch, "bfloat16", torch.float64)  # which way it rounds depends on the release
    torch.manual_seed(0)
    model = gpt(depth=4).double()
    other = copy.deepcopy(model)
    options = {"batch": tokens(), "width": "mup", "optimizer": optimizer}
    folded, hooked = sp.plan(model, "unit", **options), sp.plan(other, "unit", surgery=True, **options)
    for each, made in ((model, folded), (other, hooked)):
        for norm in (module for module in each.modules() if hasattr(module, "eps")):
            norm.eps = 0.0
        made.apply_(each)
    values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for row in folded.junctions:
        for name in row.weights:
            values[name] /= row.branch / row.level
    other.load_state_dict(values)
    left, right = train(model, folded, optimizer), train(other, hooked, optimizer)
    assert left == pytest.approx(right, rel=1e-9)
    assert left[-1] != left[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_tied_readouts_factor_in_the_final_norm_trains_like_a_forward_factor(optimizer):
    torch.manual_seed(0)
    model = gpt(width=256, depth=1, tied_head=True).double()
    other = copy.deepcopy(model)
    folded = sp.plan(model, "own", batch=tokens(), width="mup", optimizer=optimizer)
    assert folded.scales == []
    gain = folded["final_norm.weight"]
    assert gain.init.value == pytest.approx(0.5)
    other_gain = folded["blocks.0.mlp_norm.weight"]
    rows = [
        replace(other_gain, name=row.name, init=Init("keep")) if row.name.startswith("final_norm") else row
        for row in folded
    ]
    explicit = type(folded)(rows, scales=[ScalePlan("head", 0.5)], meta=folded.meta)
    folded.apply_(model)
    explicit.apply_(other)
    left, right = train(model, folded, optimizer), train(other, explicit, optimizer)
    assert left == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize("std", [0.02, 0.4])
def test_the_predicted_loss_is_told_and_kept_near_the_logarithm_of_the_classes(std):
    torch.manual_seed(0)
    model = gpt(width=128)
    made = sp.plan(model, "fixed", batch=tokens(), std=std)
    assert ("readout_factor" in made.meta) == ("the loss would start" in made["head.weight"].why) == (std == 0.4)
    logits = made.apply_(model)(tokens()).double()
    measured = (logits.logsumexp(-1) - logits.mean(-1)).mean().item()
    assert made.meta["initial_loss"] == pytest.approx(measured, abs=0.2)
    assert measured < math.log(19) + 1.0
    assert "The loss starts at" in str(made.table())


def test_planning_a_model_that_carries_a_plan_starts_from_gains_of_one():
    model = gpt(width=128, tied_head=True)
    first = sp.plan(model, "unit", batch=tokens())
    first.apply_(model)
    again = sp.plan(model, "unit", batch=tokens())
    assert again["final_norm.weight"].init.value == pytest.approx(first["final_norm.weight"].init.value)


def test_a_tied_readouts_factor_follows_the_width_where_the_recipe_gives_one_from_some_width_on():
    """Megatron's table keeps logits at one by a factor of its own once they would be larger, here at four times 32."""
    models = [gpt(width, tied_head=True) for width in (32, 64, 128, 256)]
    made = [sp.plan(model, "megatron", width="sp", base=models[0], batch=tokens()) for model in models]
    sizes = [plan["token_embedding.weight"].init.std * plan["final_norm.weight"].init.value for plan in made]
    assert sizes == pytest.approx([sizes[0] / math.sqrt(ratio) for ratio in (1, 2, 4, 8)], rel=1e-6)


def test_clear_errors():
    model = gpt()
    with pytest.raises(UnknownNameError, match="mup"):
        sp.plan(model, "unit", batch=tokens(), width="mop")
    with pytest.raises(InputError, match="give one"):
        sp.plan(model, "mup", width="sp")
    with pytest.raises(InputError, match="none or sqrt"):
        sp.plan(model, "unit", batch=tokens(), depth="cube")
    with pytest.raises(InputError, match="base="):
        sp.plan(model, "unit", batch=tokens(), width="mup", roles={"head.weight": "hidden"})


def test_experts_take_the_rate_of_their_share_of_the_batch():
    """Two of eight experts see a quarter of the tokens: a quarter to the fourth root, from 4,096 tokens down."""
    hf = pytest.importorskip("transformers")
    config = hf.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = hf.MixtralForCausalLM(config).eval()
    structure = read_structure(model, {"input_ids": tokens()})
    assert structure.expert_share == 0.25
    small, large = (
        sp.plan(model, "unit", structure=structure, width="mup", batch_tokens=batch) for batch in (4096, 16384)
    )
    experts = [item.name for item in structure if item.expert]
    assert experts
    for name in experts:
        assert small[name].lr == pytest.approx(large[name].lr * 0.25**0.25)
        assert small[name].lr * small[name].weight_decay == pytest.approx(large[name].lr * large[name].weight_decay)
    for item in structure:
        if not item.expert and item.role != "embedding":
            assert small[item.name].lr == large[item.name].lr


def test_a_run_has_all_its_numbers_from_one_call():
    model = gpt()
    short = sp.plan(model, "unit", width="mup", batch=tokens(), tokens=300 * 4096, batch_tokens=4096)
    run = short.meta["run"]
    assert (run["steps"], run["lr"]) == (300, pytest.approx(1 / 128, rel=0.1))
    assert run["weight_decay"] * run["lr"] * 300 / 3 == pytest.approx(1.0)
    longer = sp.plan(model, "unit", width="mup", batch=tokens(), tokens=3000 * 4096, batch_tokens=4096).meta["run"]
    assert longer["lr"] == pytest.approx(run["lr"] * 10**-0.32)
    larger = sp.plan(model, "unit", width="mup", batch=tokens(), tokens=2**30, batch_tokens=2**19).meta["run"]
    assert larger["betas"] == [0.9, 0.95]
    assert run["betas"][1] == pytest.approx(1 - 0.05 / 128)
    (optimizer,) = type(short).from_json(short.to_json()).optimizers(short.apply_(model))
    decayed = [group for group in optimizer.param_groups if group["weight_decay"]]
    assert {tuple(group["betas"]) for group in optimizer.param_groups} == {tuple(run["betas"])}
    assert {round(group["lr"] * group["weight_decay"], 9) for group in decayed} == {
        round(run["lr"] * run["weight_decay"], 9)
    }
    with pytest.raises(InputError, match="at least those of one batch"):
        sp.plan(model, "unit", width="mup", batch=tokens(), tokens=10, batch_tokens=4096)


def test_a_batch_of_zeros_has_no_predicted_loss_and_a_plan():
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    made = sp.plan(model, "lecun", width="mup", batch=torch.zeros(2, 16))
    assert made["2.weight"].init.std > 0
