"""Blueprints: the unrolled stack equals the chain, grids equal single settings, results are plain data."""

import dataclasses
import math

import pytest
import torch

from sigprop.blueprints import BLUEPRINTS, MLP, Mixer, ResNet, Transformer, ViT, predict, run
from sigprop.blueprints.prediction import profile_of
from sigprop.blueprints.repeated import unroll
from sigprop.errors import InputError, SigpropError, UnknownNameError
from sigprop.measurement import measure
from sigprop.models import mixer
from sigprop.research.stack_laws import SCALINGS
from sigprop.results import Profile

DEEPSCALE = {"init": "deepscale", "skip_scale": 0.95**0.5, "branch_scale": 0.05**0.5, "dropout": 0.1}
REPEATED = [
    Transformer(depth=20),
    Transformer(depth=20, norm_placement="post", dropout=0.1),
    Transformer(depth=20, norm_placement="post", **DEEPSCALE),
    Transformer(depth=20, norm_placement="sandwich", norm="rms_norm", activation="gelu"),
    MLP(depth=20, activation="gelu", sigma_w=1.5, sigma_b=0.1),
    MLP(depth=20, norm_placement="activation", mu=0.5),
    Mixer(depth=16),
    ViT(depth=16),
]


@pytest.mark.parametrize("blueprint", REPEATED, ids=lambda b: f"{b.name}-{getattr(b, 'norm_placement', '')}")
def test_all_layers_at_once_equals_the_chain(blueprint):
    assert unroll(blueprint, None) is not None
    chain, fast = profile_of([(run(blueprint)[0], None)], {}), predict(blueprint)
    assert [row.name for row in fast.sites] == [row.name for row in chain.sites]
    assert [row.name for row in fast.parameters] == [row.name for row in chain.parameters]
    for difference in fast.compare(chain).differences:
        assert abs(difference.error) < 1e-8, difference


def test_tokens_that_become_alike_do_not_stop_it():
    """What is left of their differences is rounding, and queries and keys have a gradient by nothing else."""
    blueprint = Transformer(depth=40, norm_placement="post", init="kaiming")
    assert unroll(blueprint, None) is not None
    chain, fast = profile_of([(run(blueprint)[0], None)], {}), predict(blueprint)
    assert chain["blocks.39"].token_correlation == pytest.approx(1.0, abs=1e-12)
    for difference in fast.compare(chain).differences:
        if not any(part in difference.name for part in ("query", "key")):
            assert abs(difference.error) < 1e-8, difference


def test_settings_that_change_by_layer_use_the_chain():
    blueprint = Transformer(depth=20, branch_scale=[1 / (i + 1) for i in range(20)])
    assert unroll(blueprint, None) is None
    assert len(predict(blueprint).sites) == 20 * 4 + 3


def test_a_grid_equals_its_single_settings():
    gains = torch.tensor([0.25, 1.0, 3.0], dtype=torch.float64)
    grid = predict(Transformer(depth=4, query_key_gain=gains, dropout=0.1))
    for index, gain in enumerate(gains.tolist()):
        single = predict(Transformer(depth=4, query_key_gain=gain, dropout=0.1))
        for row in single.sites:
            assert float(torch.as_tensor(grid[row.name].variance).expand(3)[index]) == pytest.approx(row.variance)
            assert float(grid[row.name].grad_variance[index]) == pytest.approx(row.grad_variance)


def test_dense_equals_exchangeable_for_alike_tokens():
    common = {"depth": 6, "tokens": 32, "norm_placement": "post", "dropout": 0.1}
    dense, alike = (predict(Transformer(state=state, **common)) for state in ("dense", "exchangeable"))
    for row in alike.sites:
        assert dense[row.name].variance == pytest.approx(row.variance, rel=0.01)
        assert dense[row.name].grad_variance == pytest.approx(row.grad_variance, rel=0.02)


@pytest.mark.parametrize("name", sorted(BLUEPRINTS))
def test_profiles_are_plain_data(name):
    profile = predict(BLUEPRINTS[name].from_settings({"depth": 2}))
    again = Profile.from_json(profile.to_json())
    assert [dataclasses.asdict(row)["variance"] for row in again.sites] == profile.column("variance")
    assert [row.shape for row in again.parameters] == [row.shape for row in profile.parameters]
    assert all(row.status and row.grad_variance > 0 for row in profile.sites)
    assert all(row.grad_second_moment >= 0 for row in profile.parameters)


def test_encoder_decoder_has_cross_attention_with_gradient_to_the_memory():
    profile = predict(Transformer(kind="encoder_decoder", depth=2, tokens=16, target_tokens=8))
    assert profile["decoder.blocks.1.cross_attention"].grad_variance > 0
    assert profile["encoder.blocks.0"].grad_variance > 0


def test_sites_cover_blocks_and_branches():
    names = [row.name for row in predict(Transformer(depth=2)).sites]
    assert names == [
        "embedding",
        "blocks.0.attention",
        "blocks.0.attention_residual",
        "blocks.0.mlp",
        "blocks.0",
        "blocks.1.attention",
        "blocks.1.attention_residual",
        "blocks.1.mlp",
        "blocks.1",
        "final_norm",
        "head",
    ]


def test_real_token_ids_make_repeated_tokens_alike():
    ids = torch.tensor([1, 2, 1, 3])
    blueprint = Transformer(depth=1, tokens=4, ids=ids, positions="none", state="dense")
    tape, _ = run(blueprint)
    embedding = tape.signal(tape.graph.nodes[0]).kernel.values
    assert embedding[0, 2] == embedding[0, 0]
    assert embedding[0, 1] == 0


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("transformer", {"heads": 7}, "heads = 7"),
        ("transformer", {"dropout": 1.0}, "dropout = 1.0"),
        ("transformer", {"dropout": float("nan")}, "finite"),
        ("transformer", {"depth": 0}, "depth = 0"),
        ("transformer", {"depth": 2.5}, "depth = 2.5"),
        ("transformer", {"dropout": "much"}, "dropout = 'much'"),
        ("transformer", {"skip_scale": [1.0, 2.0]}, "skip_scale"),
        ("transformer", {"norm_placement": "middle"}, "norm_placement = 'middle'"),
        ("mlp", {"sigma_w": -1.0}, "sigma_w = -1.0"),
        ("mlp", {"input_variance": -0.5}, "input_variance"),
        ("vit", {"patch": 5}, "divisor of the image size"),
    ],
)
def test_bad_settings_name_the_key_the_value_and_what_is_allowed(kind, settings, words):
    with pytest.raises(InputError, match=r".*") as caught:
        BLUEPRINTS[kind].from_settings(settings)
    assert words in str(caught.value)


def test_unknown_names_show_their_neighbours():
    with pytest.raises(UnknownNameError, match="dropout"):
        Transformer.from_settings({"dropuot": 0.1})
    with pytest.raises(UnknownNameError, match="relu"):
        Transformer.from_settings({"activation": "rleu"})
    with pytest.raises(UnknownNameError, match="xavier"):
        Transformer.from_settings({"init": "xavir"})


def test_batch_norm_mlp_has_the_known_growth_factor():
    """ReLU after BatchNorm: the gradient grows by pi/(pi-1) per stage (apjn, corrected single-stage form)."""
    profile = predict(MLP(depth=6, norm_placement="batch", samples=4000, width=1000, outputs=1000))
    factor = profile["blocks.2"].grad_variance / profile["blocks.3"].grad_variance
    assert factor == pytest.approx(torch.pi / (torch.pi - 1), rel=2e-3)


def test_resnet_of_either_norm_keeps_gradients_finite():
    for norm in ("batch_norm", "layer_norm"):
        profile = predict(ResNet(depth=3, norm=norm))
        assert all(0 < row.grad_variance < 1e3 for row in profile.sites)


@pytest.mark.parametrize(
    "setting", [{}, {"bias_variance": 0.01}, {"activation": "gelu"}, {"kind": "decoder", "tokens": 16}]
)
def test_a_stack_that_explodes_is_refused_with_the_reason(setting):
    """Was a bare `math domain error`, or rows of nan."""
    exploding = Transformer(norm_placement="none", init="deepscale", depth=24, **setting)
    with pytest.raises(SigpropError, match=r"not finite.*variance of the signal goes from 1 to .*norm_placement"):
        predict(exploding)


def test_the_same_stack_with_its_residual_scales_is_predicted():
    scaled = Transformer(norm_placement="none", depth=24, **SCALINGS["deepscale"](24))
    last = predict(scaled).sites[-1]
    assert 0.2 < last.variance < 5.0


def test_weight_gradients_of_a_mixer_against_real_networks():
    """They were half (weights, gains of norms below) and twice (biases) as large; a bias that is alike in all channels
    of a token has none below a norm, which the blueprint did not know."""
    sizes = {"depth": 2, "width": 64, "image": 16, "token_hidden": 64, "channel_hidden": 128, "mu": 0.8}
    averaged, *draws = (predict(Mixer(**sizes, sigma_b=0.1, seed=seed)).parameters for seed in (None, *range(6)))
    batch = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    measured = measure(None, batch, "noise", build=lambda: drawn_mixer(**sizes), seeds=range(40))
    rows = {row.name: row for row in measured.parameters}
    for row, *drawn in zip(averaged, *draws, strict=True):
        found, error = rows[row.name].grad_second_moment, rows[row.name].errors["grad_second_moment"]
        one, several = float(row.grad_second_moment), torch.tensor([float(r.grad_second_moment) for r in drawn])
        if row.name.endswith("token_mlp.down.bias"):
            assert one == 0.0
            assert not several.any()
            assert found < 1e-12
        elif "token" in row.name:  # 16 tokens: corrections of second order in that
            assert abs(one - found) < 4.0 * error + 0.1 * found, (row.name, one, found)
            error = math.hypot(error, float(several.std()) / len(drawn) ** 0.5)
            assert abs(float(several.mean()) - found) < 4.0 * error + 0.1 * found, (row.name, several, found)


def drawn_mixer(**sizes) -> torch.nn.Module:
    model = mixer(**sizes)
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
            torch.nn.init.normal_(module.weight, 0.0, module.weight[0].numel() ** -0.5)
            assert module.bias is not None
            torch.nn.init.normal_(module.bias, 0.0, 0.1)
    return model


def test_strong_biases_of_a_mixer_leave_energies_positive():
    """All tokens of a channel move together there: a squared cosine above 1 made energies negative beyond a pole."""
    rows = predict(Mixer(sigma_w=1.0, sigma_b=torch.tensor([0.8, 1.0, 1.2], dtype=torch.float64))).sites
    assert all(bool((row.grad_variance > 0.0).all()) for row in rows)  # type: ignore[union-attr, operator]
