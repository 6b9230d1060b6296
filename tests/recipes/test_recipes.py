"""Each recipe keeps what its paper promises, refuses where it does not apply, and none goes without a test."""

import math

import pytest
import torch
from torch import nn

from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.models import build
from sigprop.recipes import examine, get_recipe, plan, recipe, recipes
from sigprop.recipes.deepnorm import deepnorm_constants
from sigprop.recipes.layer_scale import layer_scale_start
from sigprop.results import Plan
from sigprop.trace.skeleton import build as build_on_meta

TESTED: set[str] = set()
WIDTH, DEPTH, HEADS = 32, 4, 4


def identity(name):
    """Marks the test that holds a recipe to its paper."""
    TESTED.add(name)
    return lambda function: function


def model_of(placement="pre", **settings):
    settings = {"kind": "encoder", "activation": "relu", "depth": DEPTH, "width": WIDTH, "heads": HEADS} | settings
    return build("transformer", norm_placement=placement, context=32, vocabulary=64, **settings)


def ids(tokens=24):
    return torch.randint(64, (1, tokens), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def anatomies():
    return {placement: examine(model_of(placement), ids()) for placement in ("pre", "post", "none")}


def raw(anatomies, name, placement="pre", **options):
    """What the recipe itself returns, before folding."""
    return get_recipe(name)(anatomies[placement], **options)


def stds(made):
    return {row.name: row.init.std for row in made}


def drawn(made, model, seed=0):
    return made.apply_(model, torch.Generator().manual_seed(seed))


# -- initializations


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
    anatomy = examine(model_of(fused_qkv=True), ids())
    whole, part, head = (get_recipe("xavier")(anatomy, per=per)["blocks.0.attention.qkv.weight"].init for per in
                         ("matrix", "part", "head"))  # fmt: skip
    assert whole.std**2 == pytest.approx(2 / (4 * WIDTH))
    assert part.std**2 == pytest.approx(1 / WIDTH)
    assert head.std**2 == pytest.approx(2 / (WIDTH + WIDTH / HEADS))
    assert get_recipe("xavier")(anatomy)["blocks.0.mlp.up.weight"].init.std ** 2 == pytest.approx(2 / (5 * WIDTH))
    with pytest.raises(InputError, match="matrix or part or head"):
        get_recipe("xavier")(anatomy, per="row")


@identity("kaiming")
@identity("lecun")
@identity("fixed")
def test_plain_variances(anatomies):
    name = "blocks.1.mlp.down.weight"
    assert stds(raw(anatomies, "kaiming"))[name] ** 2 == pytest.approx(2 / (4 * WIDTH))
    assert stds(raw(anatomies, "kaiming", mode="fan_out"))[name] ** 2 == pytest.approx(2 / WIDTH)
    assert stds(raw(anatomies, "lecun"))[name] ** 2 == pytest.approx(1 / (4 * WIDTH))
    assert stds(raw(anatomies, "fixed", std=0.03))[name] == 0.03


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
def test_small_init_values(anatomies):
    found = stds(raw(anatomies, "small_init"))
    assert found["blocks.0.attention.query.weight"] ** 2 == pytest.approx(2 / (5 * WIDTH))
    assert found["blocks.3.mlp.down.weight"] == pytest.approx(2 / (DEPTH * math.sqrt(WIDTH)))


@identity("ds_init")
def test_ds_init_divides_by_the_root_of_the_layer(anatomies):
    made, base = raw(anatomies, "ds_init"), raw(anatomies, "xavier")
    for layer in range(DEPTH):
        for leaf in ("attention.query", "attention.output", "mlp.up", "mlp.down"):
            name = f"blocks.{layer}.{leaf}.weight"
            assert made[name].init.std == pytest.approx(base[name].init.std / math.sqrt(layer + 1))
    assert made["head.weight"].init.std == base["head.weight"].init.std


# -- dslm


def pseudo_code(r, layers, p=0.0):
    """App. N with the correlation read before the update."""
    skip, branch = 1 - 2 / layers, 2 / layers
    found = []
    for _ in range(layers):
        found.append(r)
        r = skip * r + branch * (1 - p)
        relu = r + math.sqrt(1 - r * r) / math.pi - r * math.acos(r) / math.pi
        r = skip * r + branch * (1 - p) * relu
    return found


@identity("deepscale")
def test_deepscale_is_the_papers_pseudo_code():
    for p in (0.0, 0.1):
        model = model_of(dropout=p).train()
        made = get_recipe("deepscale")(examine(model, ids()), input_correlation=0.2, finite=False)
        variances = {name: std**2 for name, std in stds(made).items()}
        for layer, r in enumerate(pseudo_code(0.2, DEPTH, p)):
            expected = math.sqrt((1 - p) / r) / WIDTH
            assert variances[f"blocks.{layer}.attention.value.weight"] == pytest.approx(expected)
            assert variances[f"blocks.{layer}.attention.output.weight"] == pytest.approx(expected)
            assert variances[f"blocks.{layer}.attention.key.weight"] == pytest.approx(1 / WIDTH)
            for leaf in ("mlp.up", "mlp.down"):
                assert variances[f"blocks.{layer}.{leaf}.weight"] == pytest.approx(math.sqrt((1 - p) / 2) / WIDTH)
        assert variances["token_embedding.weight"] == pytest.approx((1 - p) / 2)
        assert {(row.skip, row.branch) for row in made.junctions} == {(math.sqrt(0.5), math.sqrt(0.5))}


def test_deepscale_reads_the_correlation_of_repeated_tokens():
    same = examine(model_of(), torch.full((1, 24), 5))
    made = get_recipe("deepscale")(same)
    varied = get_recipe("deepscale")(examine(model_of(), torch.arange(24)[None]))
    first = "blocks.0.attention.value.weight"
    assert made[first].init.std < varied[first].init.std
    expected = math.sqrt(1 / (0.5 + 0.5 / 24 * math.exp(0.5))) / WIDTH
    assert made[first].init.std ** 2 == pytest.approx(expected, rel=0.02)


@identity("deepscale_simple")
def test_deepscale_simple_draws_values_like_the_mlp(anatomies):
    found = stds(raw(anatomies, "deepscale_simple"))
    for leaf in ("attention.value", "attention.output", "mlp.up", "mlp.down"):
        assert found[f"blocks.2.{leaf}.weight"] ** 2 == pytest.approx(math.sqrt(0.5) / WIDTH)


@identity("depth_scaling")
def test_depth_scaling_of_any_power(anatomies):
    for k, alpha in ((1.0, 1.0), (2.0, 1.5), (3.0, 2.0)):
        rows = raw(anatomies, "depth_scaling", k=k, alpha=alpha).junctions
        assert [row.branch**2 for row in rows] == pytest.approx([k / DEPTH**alpha] * 2 * DEPTH)
        assert all(row.skip**2 + row.branch**2 == pytest.approx(1.0) for row in rows)
    assert {row.skip for row in raw(anatomies, "depth_scaling", skip="one").junctions} == {1.0}
    with pytest.raises(InputError, match="less than 1"):
        raw(anatomies, "depth_scaling", k=5.0)


# -- residual schemes


@identity("deepnorm")
def test_deepnorm_constants_and_gains(anatomies):
    assert deepnorm_constants(100, None)["encoder"] == (pytest.approx(200**0.25), pytest.approx(800**-0.25))
    assert deepnorm_constants(None, 24)["decoder"] == (pytest.approx(48**0.25), pytest.approx(192**-0.25))
    both = deepnorm_constants(18, 6)
    assert both["encoder"] == (
        pytest.approx(0.81 * (18**4 * 6) ** 0.0625),
        pytest.approx(0.87 * (18**4 * 6) ** -0.0625),
    )
    assert both["decoder"] == (pytest.approx(18**0.25), pytest.approx(72**-0.25))
    made, base = raw(anatomies, "deepnorm", "post"), raw(anatomies, "xavier", "post")
    alpha, beta = (2 * DEPTH) ** 0.25, (8 * DEPTH) ** -0.25
    assert {(row.skip, row.branch) for row in made.junctions} == {(alpha, 1.0)}
    for leaf, gain in (("attention.value", beta), ("mlp.up", beta), ("mlp.down", beta), ("attention.key", 1.0)):
        name = f"blocks.1.{leaf}.weight"
        assert made[name].init.std == pytest.approx(gain * base[name].init.std)


def test_deepnorm_of_an_encoder_decoder():
    model = model_of("post", kind="encoder_decoder", depth=3)
    made = get_recipe("deepnorm")(examine(model, (ids(), ids())))
    skips = {row.name.partition(".")[0]: row.skip for row in made.junctions}
    assert skips == {"encoder": pytest.approx(0.81 * 3 ** (5 / 16)), "decoder": pytest.approx(9**0.25)}


@identity("noci")
def test_noci_divides_branches_by_the_root_of_the_depth(anatomies):
    made = raw(anatomies, "noci", inverse_temperature=4.0)
    assert {(row.skip, row.branch) for row in made.junctions} == {(1.0, DEPTH**-0.5)}
    base = stds(raw(anatomies, "xavier"))
    assert made["blocks.0.attention.key.weight"].init.std == pytest.approx(2 * base["blocks.0.attention.key.weight"])


@identity("rezero")
def test_rezero_starts_as_the_identity():
    model = model_of()
    made = drawn(plan(model, "rezero", surgery=True, batch=ids()), model)
    expected = model.head(model.final_norm(model.embed(ids())))
    torch.testing.assert_close(made(ids()), expected)
    scales = [p for name, p in model.named_parameters() if name.endswith("branch_scale")]
    assert len(scales) == 2 * DEPTH
    model(ids()).square().sum().backward()
    assert all(p.grad is not None and float(p.grad.abs()) > 0 for p in scales)


@identity("skipinit")
def test_skipinit_without_norms(anatomies):
    made = raw(anatomies, "skipinit", "none")
    assert all(row.learnable and row.branch == 0.0 for row in made.junctions)
    assert {row.branch for row in raw(anatomies, "skipinit", "none", start=None).junctions} == {(2 * DEPTH) ** -0.5}
    with pytest.raises(UnsupportedError, match="no norm"):
        raw(anatomies, "skipinit", "pre")


@identity("layer_scale")
def test_layer_scale_starts_by_depth(anatomies):
    assert [layer_scale_start(n) for n in (12, 18, 24, 36)] == [0.1, 0.1, 1e-5, 1e-6]
    made = raw(anatomies, "layer_scale")
    assert {row.shape for row in made.junctions} == {(WIDTH,)}
    assert made["blocks.0.mlp.branch_scale"].init.value == 0.1


@identity("fixup")
def test_fixup_closes_every_branch():
    model = model_of("none")
    drawn(plan(model, "fixup", batch=ids()), model)
    with torch.no_grad():
        start = model.embed(ids())
        assert torch.equal(model.blocks[2](start), start)
        assert torch.equal(model(ids()), torch.zeros(1, 24, 64))
    made = plan(model, "fixup", batch=ids())
    branches = 2 * DEPTH
    assert made["blocks.0.mlp.up.weight"].init.std == pytest.approx(math.sqrt(2 / WIDTH) * branches**-0.5)


@identity("t_fixup")
def test_t_fixup_factors():
    encoder = get_recipe("t_fixup")(examine(model_of("none"), ids()))
    decoder = get_recipe("t_fixup")(examine(model_of("none", kind="decoder"), ids()))
    name, xavier = "blocks.1.attention.value.weight", WIDTH**-0.5
    assert encoder[name].init.std == pytest.approx(0.67 * DEPTH**-0.25 * xavier)
    assert decoder[name].init.std == pytest.approx((9 * DEPTH) ** -0.25 * xavier)
    assert decoder["blocks.1.attention.query.weight"].init.std == pytest.approx(xavier)
    assert decoder["token_embedding.weight"].init.std == pytest.approx(WIDTH**-0.5 * (9 * DEPTH) ** -0.25)


@identity("value_skipinit")
def test_value_skipinit_passes_values_token_by_token():
    model = model_of()
    drawn(plan(model, "value_skipinit", surgery=True, batch=ids()), model)
    attention = model.blocks[0].attention
    x = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(0))
    plain = nn.functional.linear(attention.value(x), attention.output.weight, attention.output.bias)
    torch.testing.assert_close(attention(x), plain)
    with pytest.raises(UnsupportedError, match="value matrix of its own"):
        plan(model_of(fused_qkv=True), "value_skipinit", surgery=True, batch=ids())


# -- driven by data


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


TESTED.add("unit")  # test_unit.py


# -- all of them


def test_every_recipe_has_a_test_and_a_description():
    assert set(recipes()) == TESTED
    for item in recipes().values():
        assert item.paper
        assert item.applies_to
        assert item.effect
        assert len(item.effect) < 140


def test_registry_refuses_duplicates_and_unknown_names():
    with pytest.raises(InputError, match="already registered"):
        recipe("xavier", paper="", applies_to="", effect="")(lambda anatomy: Plan([]))
    with pytest.raises(UnknownNameError, match="deepscale"):
        get_recipe("deepscael")


def test_unknown_options_are_named(anatomies):
    with pytest.raises(InputError, match="strength"):
        raw(anatomies, "lecun", strength=2)


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
def test_recipes_refuse_other_architectures(anatomies, name, placement, message):
    with pytest.raises(UnsupportedError, match=message):
        raw(anatomies, name, placement)


@pytest.mark.parametrize("name", ["deepscale", "small_init", "noci", "value_skipinit", "ds_init"])
def test_recipes_for_transformers_refuse_an_mlp(name):
    model = build("mlp", depth=3, width=16, inputs=16)
    with pytest.raises(UnsupportedError, match="Transformer"):
        plan(model, name, batch=torch.randn(4, 16))


def test_learned_scales_ask_for_surgery(anatomies):
    for name in ("rezero", "layer_scale", "value_skipinit"):
        with pytest.raises(UnsupportedError, match="surgery=True"):
            plan(model_of(), name, anatomy=anatomies["pre"])


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


def test_gated_mlps_are_sent_to_unit():
    with pytest.raises(UnsupportedError, match="unit"):
        plan(model_of(activation="swiglu"), "deepscale", batch=ids())
