"""Schemes that scale residual branches: the constants of their papers, and what a model does at the start."""

import math

import pytest
import torch
from torch import nn

from sigprop.errors import UnsupportedError
from sigprop.plans.recipes import RECIPES, plan
from sigprop.plans.recipes.schemes.sums import deepnorm_constants, layer_scale_start
from sigprop.structure import read_structure
from tests.plans.recipes.shared import DEPTH, WIDTH, drawn, identity, ids, model_of, raw, stds


@identity("deepnorm")
def test_deepnorm_constants_and_gains():
    assert deepnorm_constants(100, None)["encoder"] == (pytest.approx(200**0.25), pytest.approx(800**-0.25))
    assert deepnorm_constants(None, 24)["decoder"] == (pytest.approx(48**0.25), pytest.approx(192**-0.25))
    both = deepnorm_constants(18, 6)
    assert both["encoder"] == (
        pytest.approx(0.81 * (18**4 * 6) ** 0.0625),
        pytest.approx(0.87 * (18**4 * 6) ** -0.0625),
    )
    assert both["decoder"] == (pytest.approx(18**0.25), pytest.approx(72**-0.25))
    made, base = raw("deepnorm", "post"), raw("xavier", "post")
    alpha, beta = (2 * DEPTH) ** 0.25, (8 * DEPTH) ** -0.25
    assert {(row.skip, row.branch) for row in made.junctions} == {(alpha, 1.0)}
    for leaf, gain in (("attention.value", beta), ("mlp.up", beta), ("mlp.down", beta), ("attention.key", 1.0)):
        name = f"blocks.1.{leaf}.weight"
        assert made[name].init.std == pytest.approx(gain * base[name].init.std)


def test_deepnorm_of_an_encoder_decoder():
    model = model_of("post", kind="encoder_decoder", depth=3)
    made = RECIPES["deepnorm"](read_structure(model, (ids(), ids())))
    skips = {row.name.partition(".")[0]: row.skip for row in made.junctions}
    assert skips == {"encoder": pytest.approx(0.81 * 3 ** (5 / 16)), "decoder": pytest.approx(9**0.25)}


@identity("noci")
def test_noci_divides_branches_by_the_root_of_the_depth():
    made = raw("noci", inverse_temperature=4.0)
    assert {(row.skip, row.branch) for row in made.junctions} == {(1.0, DEPTH**-0.5)}
    base = stds(raw("xavier"))
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
def test_skipinit_without_norms():
    made = raw("skipinit", "none")
    assert all(row.learnable and row.branch == 0.0 for row in made.junctions)
    assert {row.branch for row in raw("skipinit", "none", start=None).junctions} == {(2 * DEPTH) ** -0.5}
    with pytest.raises(UnsupportedError, match="no norm"):
        raw("skipinit", "pre")


@identity("layer_scale")
def test_layer_scale_starts_by_depth():
    assert [layer_scale_start(n) for n in (12, 18, 24, 36)] == [0.1, 0.1, 1e-5, 1e-6]
    made = raw("layer_scale")
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


class Projected(nn.Module):
    """Two blocks of a residual network without norms, the second with a projected skip."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(8, 10)
        self.first = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.second = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.shortcut = nn.Conv2d(4, 8, 1, 2)

    def forward(self, images):
        x = self.stem(images)
        x = x + self.first(x)
        return self.head((self.shortcut(x) + self.second(x)).mean((2, 3)))


def test_branches_beside_a_projected_skip_are_branches_too():
    model, images = Projected(), torch.randn(2, 3, 8, 8)
    structure = read_structure(model, images)
    assert [junction.projected for junction in structure.junctions] == [False, True]
    made = plan(model, "fixup", structure=structure)
    for name in ("first", "second"):
        assert made[f"{name}.2.weight"].init.value == 0.0
        assert made[f"{name}.0.weight"].init.std == pytest.approx(math.sqrt(2 / 36) * 2**-0.5)
    assert made["shortcut.weight"].init.std > 0
    with pytest.raises(UnsupportedError, match="weight of its own"):
        plan(model, "depth_scaling", k=0.5, structure=structure)
    assert len(plan(model, "depth_scaling", k=0.5, skip="one", structure=structure).junctions) == 2


@identity("t_fixup")
def test_t_fixup_factors():
    encoder = RECIPES["t_fixup"](read_structure(model_of("none"), ids()))
    decoder = RECIPES["t_fixup"](read_structure(model_of("none", kind="decoder"), ids()))
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
