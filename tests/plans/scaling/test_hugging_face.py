"""Unmodified Hugging Face models: every parameter has a role, training runs, wrappers keep the plan."""

import copy

import pytest
import torch

from sigprop.plans.scaling import coord_check
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.dimensions import compare
from sigprop.results.parameters import WIDTH_CLASSES
from sigprop.structure import read_structure

transformers = pytest.importorskip("transformers")
VOCABULARY = 23


def gpt2(width, heads):
    config = transformers.GPT2Config(
        n_embd=width, n_layer=2, n_head=heads, vocab_size=VOCABULARY, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama(width, heads):
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=heads // 2, vocab_size=VOCABULARY,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert(width, heads):
    config = transformers.BertConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=heads,
        vocab_size=VOCABULARY, max_position_embeddings=8,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def t5(width, heads):
    config = transformers.T5Config(
        d_model=width, d_kv=width // heads, d_ff=2 * width, num_layers=2, num_heads=heads, vocab_size=VOCABULARY,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def vit(width, heads):
    config = transformers.ViTConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=heads,
        image_size=8, patch_size=4,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert, "t5": t5, "vit": vit}


def batch(name):
    generator = torch.Generator().manual_seed(0)
    if name == "vit":
        pixels = torch.randn(2, 3, 8, 8, generator=generator)
        return {"pixel_values": pixels, "labels": torch.tensor([0, 1])}
    ids = torch.randint(1, VOCABULARY, (2, 8), generator=generator)
    return {"input_ids": ids, "labels": ids}


def losses(model, groups, name, steps=3):
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    found = []
    model.eval()
    for _ in range(steps):
        loss = model(**batch(name)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        found.append(loss.item())
    return found


def _double(inputs):
    return {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}


@pytest.mark.parametrize("name", MODELS)
def test_roles_factors_and_training(name):
    torch.manual_seed(0)
    base, model = MODELS[name](16, 4), MODELS[name](64, 4)
    plan = prescribe(model, "mup", base=base)
    by_role = {WIDTH_CLASSES[row.role]: row for row in plan}
    assert by_role["hidden"].lr == pytest.approx(1 / 4)
    assert by_role["embedding"].lr == 1.0
    assert plan.scales == []
    norms = {
        "gpt2": "transformer.ln_f",
        "bert": "cls.predictions.transform.LayerNorm",
        "t5": "decoder.final_layer_norm",
    }
    if name in norms:
        gain = plan[f"{norms[name]}.weight"]
        assert gain.init.value == gain.lr == pytest.approx(0.5 if name == "t5" else 0.25)
    else:
        assert by_role["readout"].lr == pytest.approx(1 / 4)
        assert by_role["readout"].init.value == pytest.approx(1 / 4)
    explicit = copy.deepcopy(model)
    prescribe(explicit, "mup", base=base, attention="keep").apply_(explicit)
    attentions = [module for module in explicit.modules() if isinstance(getattr(module, "scaling", None), float)]
    assert len(attentions) == (6 if name == "t5" else 2)
    for module in attentions:
        module.scaling *= 0.25 if name == "t5" else 0.5
    plan.apply_(model)
    inputs = batch(name)
    wanted, found = (each.eval().double()(**_double(inputs)).logits for each in (explicit, model))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    model.float()
    found = losses(model, plan.param_groups(model, lr=1e-2, weight_decay=0.1), name)
    assert found[-1] < found[0]


@pytest.mark.parametrize("name", MODELS)
def test_at_the_base_nothing_changes(name):
    torch.manual_seed(0)
    model = MODELS[name](16, 4)
    other = copy.deepcopy(model)
    plan = prescribe(model, "mup", base=MODELS[name](16, 4), depth="sqrt").apply_(model) and prescribe(
        model, "mup", base=MODELS[name](16, 4), depth="sqrt"
    )
    assert losses(model, plan.param_groups(model, lr=1e-2, weight_decay=0.1, decay_vectors=True), name) == losses(
        other, [{"params": list(other.parameters()), "lr": 1e-2, "weight_decay": 0.1}], name
    )


@pytest.mark.parametrize("name", MODELS)
def test_base_width_alone_scales_the_number_of_heads(name):
    torch.manual_seed(0)
    plan = prescribe(MODELS[name](64, 8), "mup", base=32)
    assert not [row for row in plan.scales if row.place.startswith("attribute:")]
    assert {round(row.lr, 6) for row in plan if row.role == "hidden"} == {0.5}


def test_base_width_alone_scales_what_the_mlps_of_falcon_and_distilbert_are_made_of():
    falcon = transformers.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, ffn_hidden_size=256
    )
    distilbert = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=64, n_layers=1, n_heads=4, hidden_dim=256, max_position_embeddings=8
    )
    for model in (transformers.FalconForCausalLM(falcon), transformers.DistilBertForMaskedLM(distilbert)):
        rows = [row for row in prescribe(model, "mup", base=32) if len(row.shape) == 2 and 256 in row.shape]
        assert [(row.role, row.lr) for row in rows] == [("hidden", 0.5), ("output", 0.5)]


def one_key_head(width):
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=1, vocab_size=VOCABULARY,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def alibi(width):
    config = transformers.BloomConfig(hidden_size=width, n_layer=1, n_head=4, vocab_size=VOCABULARY)
    return transformers.BloomForCausalLM(config).eval()


@pytest.mark.parametrize("make", [one_key_head, alibi])
def test_key_heads_that_stay_and_position_biases_raise_no_alarm(make):
    report = coord_check(make, [32, 64, 128], batch=batch("llama"), seeds=2, steps=2, lr=1e-2)
    assert report.passed, [str(item) for item in report.culprits]


@pytest.mark.parametrize("name", MODELS)
def test_copies_and_sharded_models_keep_the_plan(name, tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = MODELS[name](32, 4)
    plan = prescribe(model, "mup", base=MODELS[name](16, 4))
    plan.apply_(model)
    expected = losses(copy.deepcopy(model), plan.param_groups(model, lr=1e-2), name, steps=1)
    twin = copy.deepcopy(model)
    assert losses(twin, plan.param_groups(twin, lr=1e-2), name, steps=1) == expected
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        groups = plan.param_groups(model, lr=1e-2)
        assert losses(model, groups, name, steps=2)[0] == pytest.approx(expected[0], rel=1e-5)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", MODELS)
def test_the_coordinate_check_passes(name):
    report = coord_check(
        lambda width: MODELS[name](width, 4).eval(), [32, 64, 128, 256], batch=batch(name), seeds=2, steps=2, lr=1e-2
    )
    assert report.passed, [str(item) for item in report.culprits]
    assert any(item.name.endswith(".scores") for item in report.exponents)


def test_the_coordinate_check_fails_without_a_plan():
    report = coord_check(
        lambda width: gpt2(width, 4).eval(),
        [32, 64, 128, 256],
        batch=batch("gpt2"),
        plan=None,
        seeds=2,
        steps=2,
        lr=1e-2,
    )
    assert not report.passed
    assert report.find("transformer.h.0.attn.scores", "change", 1).low > 0.5


def test_configurations_serve_as_base():
    torch.manual_seed(0)
    model = llama(64, 8)
    small = llama(16, 2).config
    plan = prescribe(model, "mup", base=small)
    assert plan["lm_head.weight"].lr == pytest.approx(1 / 4)


def test_trainer_takes_the_groups(tmp_path):
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = gpt2(32, 4)
    plan = prescribe(model, "mup", base=gpt2(16, 4))
    plan.apply_(model)
    optimizer = torch.optim.AdamW(plan.param_groups(model, lr=1e-2))
    rows = [{"input_ids": ids, "labels": ids} for ids in batch("gpt2")["input_ids"]]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None))
    before = model.lm_head.weight.detach().clone()
    trainer.train()
    assert not torch.equal(before, model.lm_head.weight)
    rates = sorted({row.lr * 1e-2 for row in plan})
    assert sorted({group["initial_lr"] for group in optimizer.param_groups}) == pytest.approx(rates)


def decoder(name, layers, width=32, heads=2, **settings):
    shape = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "vocab_size": VOCABULARY,
    }
    grouped = {
        **shape,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    config = getattr(transformers, f"{name}Config")(**grouped, pad_token_id=1, **settings)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("Mixtral", {"num_local_experts": 2}), ("Phi", {}), ("Olmo2", {}), ("Gemma2", {"head_dim": 16})],
)
def test_a_depth_rule_scales_what_every_branch_adds(name, settings):
    """Experts, parallel branches, and norms that end a branch and would undo the scale of what comes before."""
    torch.manual_seed(0)
    model, base = decoder(name, 8, **settings), decoder(name, 2, **settings)
    ids = {"input_ids": batch("gpt2")["input_ids"]}
    plan = prescribe(model, "mup", base=base, depth="linear", batch=ids)
    before = branch_variances(model, ids)
    ratios = [mine / theirs for mine, theirs in zip(branch_variances(plan.apply_(model), ids), before, strict=True)]
    assert ratios[0] == pytest.approx(1 / 16, rel=0.05)
    if name != "Olmo2":  # its second branch reads the stream itself, which the first has changed
        assert ratios[1] == pytest.approx(1 / 16, rel=0.05)


def branch_variances(model, ids):
    structure = read_structure(model, ids)
    return [float(structure.traced.states.signal(spot.branch.node).summary()[1]) for spot in structure.sums]


def test_numbers_inside_a_block_are_not_layers():
    """The base partner of `9.2` is some `*.2`, whatever comes first under the pattern."""

    def net(layers):
        parts = (torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
        return torch.nn.ModuleList(torch.nn.Sequential(*copy.deepcopy(parts)) for _ in range(layers))

    found = {item.name: item for item in compare(net(6), net(2))}
    assert found["5.2.weight"].base_name.endswith(".2.weight")
    assert found["5.2.weight"].base_shape == (8, 32)


def test_the_scale_that_a_model_has_of_its_own_is_read():
    """GPT-Neo multiplies scores by nothing; a norm on queries undoes a factor in their projection."""

    def neo(width):
        config = transformers.GPTNeoConfig(
            hidden_size=width, num_layers=1, num_heads=2, attention_types=[[["global"], 1]], vocab_size=VOCABULARY
        )
        return transformers.GPTNeoForCausalLM(config).eval()

    ids = {"input_ids": batch("gpt2")["input_ids"]}
    plan = prescribe(neo(64), "mup", base=neo(16), batch=ids)
    query, key = (plan[f"transformer.h.0.attn.attention.{name}_proj.weight"] for name in "qk")
    assert query.init.value / key.init.value == pytest.approx(1 / 4)
    normed = prescribe(decoder("Olmo2", 1, 64), "mup", base=decoder("Olmo2", 1, 16), batch=ids)
    gain = normed["model.layers.0.self_attn.q_norm.weight"]
    assert gain.init.value == gain.lr == pytest.approx(0.5)
    assert normed.scales == []


def test_a_router_and_its_experts_have_roles():
    model, base = (decoder("Mixtral", 1, width, num_local_experts=2) for width in (64, 16))
    plan = prescribe(model, "mup", base=base, batch={"input_ids": batch("gpt2")["input_ids"]})
    assert plan["model.layers.0.mlp.gate.weight"].lr == pytest.approx(1 / 4)
    assert plan["model.layers.0.mlp.experts.down_proj"].lr == pytest.approx(1 / 4)
