"""Plain initializations: variances of their papers and of the libraries that draw so."""

import math

import pytest
import torch
from torch import nn

from sigprop.errors import InputError, UnsupportedError
from sigprop.plans.recipes import RECIPES, plan
from sigprop.structure import read_structure
from tests.plans.recipes.shared import DEPTH, HEADS, WIDTH, drawn, identity, ids, model_of, raw, stds


@identity("pytorch")
def test_pytorch_draws_as_torch_does():
    model = model_of()
    made = plan(model, "pytorch", batch=ids())
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, 4 * WIDTH)
    row = made["blocks.0.mlp.up.weight"]
    assert row.init.kind == "uniform"
    assert row.init.std * math.sqrt(3) == pytest.approx(WIDTH**-0.5)
    assert float(layer.weight.detach().abs().max()) <= row.init.std * math.sqrt(3)
    assert float(layer.weight.detach().std()) == pytest.approx(
        row.init.std, rel=4 / math.sqrt(2 * layer.weight.numel())
    )
    assert made["blocks.0.mlp.up.bias"].init == row.init
    assert made["token_embedding.weight"].init.std == 1.0


@identity("xavier")
def test_xavier_counts_fans_per_matrix_part_or_head():
    structure = read_structure(model_of(fused_qkv=True), ids())
    whole, part, head = (RECIPES["xavier"](structure, per=per)["blocks.0.attention.qkv.weight"].init for per in
                         ("matrix", "part", "head"))  # fmt: skip
    assert whole.std**2 == pytest.approx(2 / (4 * WIDTH))
    assert part.std**2 == pytest.approx(1 / WIDTH)
    assert head.std**2 == pytest.approx(2 / (WIDTH + WIDTH / HEADS))
    assert RECIPES["xavier"](structure)["blocks.0.mlp.up.weight"].init.std ** 2 == pytest.approx(2 / (5 * WIDTH))
    with pytest.raises(InputError, match="matrix or part or head"):
        RECIPES["xavier"](structure, per="row")


@identity("kaiming", "lecun", "fixed")
def test_plain_variances():
    name = "blocks.1.mlp.down.weight"
    assert stds(raw("kaiming"))[name] ** 2 == pytest.approx(2 / (4 * WIDTH))
    assert stds(raw("kaiming", mode="fan_out"))[name] ** 2 == pytest.approx(2 / WIDTH)
    assert stds(raw("lecun"))[name] ** 2 == pytest.approx(1 / (4 * WIDTH))
    assert stds(raw("fixed", std=0.03))[name] == 0.03


@identity("gpt2")
def test_gpt2_agrees_with_hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    made = plan(model, "gpt2", batch={"input_ids": ids()})
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            tolerance = 4 / math.sqrt(2 * parameter.numel())
            assert float(parameter.detach().std()) == pytest.approx(made[name].init.std, rel=tolerance), name


@identity("orthogonal")
def test_orthogonal_matrices_have_one_singular_value():
    model = model_of(fused_qkv=True)
    drawn(plan(model, "orthogonal", gain=1.5, batch=ids()), model)
    for weight in (model.blocks[0].mlp.up.weight, model.blocks[0].mlp.down.weight, model.head.weight):
        values = torch.linalg.svdvals(weight.detach())
        torch.testing.assert_close(values, torch.full_like(values, 1.5), rtol=1e-4, atol=1e-4)


@identity("small_init")
def test_small_init_values():
    found = stds(raw("small_init"))
    assert found["blocks.0.attention.query.weight"] ** 2 == pytest.approx(2 / (5 * WIDTH))
    assert found["blocks.3.mlp.down.weight"] == pytest.approx(2 / (DEPTH * math.sqrt(WIDTH)))


@identity("ds_init")
def test_ds_init_divides_by_the_root_of_the_layer():
    made, base = raw("ds_init"), raw("xavier")
    for layer in range(DEPTH):
        for leaf in ("attention.query", "attention.output", "mlp.up", "mlp.down"):
            name = f"blocks.{layer}.{leaf}.weight"
            assert made[name].init.std == pytest.approx(base[name].init.std / math.sqrt(layer + 1))
    assert made["head.weight"].init.std == base["head.weight"].init.std


@identity("own")
def test_own_keeps_what_the_model_has():
    model = model_of()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    plan(model, "own", batch=ids()).apply_(model)
    assert all(torch.equal(before[name], values) for name, values in model.state_dict().items())


@identity("mitchell", "megatron")
def test_branch_outputs_of_mitchell_and_megatron():
    mitchell, megatron = (RECIPES[name](read_structure(model_of(), ids())) for name in ("mitchell", "megatron"))
    for layer in range(DEPTH):
        row = mitchell[f"blocks.{layer}.mlp.down.weight"]
        assert row.init.kind == "truncated"
        assert row.init.std**-2 == pytest.approx(2 * 4 * WIDTH * (layer + 1))
        assert megatron[row.name].init.std ** -2 == pytest.approx(3 * WIDTH * 2 * DEPTH)
    assert mitchell["blocks.0.mlp.up.weight"].init.std ** -2 == pytest.approx(WIDTH)
    assert megatron["blocks.0.mlp.up.weight"].init.std ** -2 == pytest.approx(3 * WIDTH)


def test_truncated_draws_have_the_asked_size_and_no_tails():
    model = model_of(width=64)
    made = plan(model, "mitchell", batch=ids())
    weight = drawn(made, model).get_parameter("blocks.0.mlp.up.weight").detach()
    std = made["blocks.0.mlp.up.weight"].init.std
    assert float(weight.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * weight.numel()))
    assert 2.9 * std < float(weight.abs().max()) < 3.05 * std


@identity("spectral")
def test_spectral_norms_are_those_of_the_condition():
    model = model_of(width=128)
    made = plan(model, "spectral", batch=ids())
    drawn(made, model)
    for name in ("blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight", "blocks.1.attention.query.weight"):
        weight = model.get_parameter(name).detach()
        wanted = math.sqrt(weight.shape[0] / weight.shape[1])
        assert float(torch.linalg.matrix_norm(weight, 2)) == pytest.approx(wanted, rel=0.06)


@identity("layer_norm_scaling")
def test_gains_of_deeper_layers_start_smaller():
    made = raw("layer_norm_scaling")
    for layer in range(DEPTH):
        for name in ("attention_norm", "mlp_norm"):
            assert made[f"blocks.{layer}.{name}.weight"].init.value == pytest.approx((layer + 1) ** -0.5)
    assert made["final_norm.weight"].init.value == 1.0
    with pytest.raises(UnsupportedError, match="Pre-LN"):
        raw("layer_norm_scaling", "post")


@pytest.mark.parametrize("groups", [1, 4])
def test_transposed_convolutions_are_matrices_of_their_fan_in(groups):
    """Each output of stride 2 and kernel 4 is in four of sixteen places of a window."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(64, 48, 4, 2, 1, groups=groups), nn.ReLU()
    )
    x = torch.randn(8, 3, 12, 12)
    made = plan(model, "kaiming", batch=x)
    assert made["2.weight"].init.std == pytest.approx((2 / (64 // groups * 4)) ** 0.5)
    ratios = []
    for seed in range(20):
        made.apply_(model, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            first, out = model[:2](x), model[:3](x)
        ratios.append(out[..., 4:-4, 4:-4].square().mean() / (2 * first[..., 1:-1, 1:-1].square().mean()))
    found = torch.stack(ratios)
    assert abs(found.mean() - 1) < 4 * found.std() / 20**0.5
    assert found.std() < 0.2
