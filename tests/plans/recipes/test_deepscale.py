"""DeepScale is dslm's pseudo-code, and depth scalings follow any power."""

import math

import pytest
import torch

from sigprop.errors import InputError, UnsupportedError
from sigprop.plans.recipes import RECIPES, plan
from sigprop.structure import read_structure
from tests.plans.recipes.shared import DEPTH, WIDTH, identity, ids, model_of, raw, stds


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
        made = RECIPES["deepscale"](read_structure(model, ids()), input_correlation=0.2, finite=False)
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
    same = read_structure(model_of(), torch.full((1, 24), 5))
    made = RECIPES["deepscale"](same)
    varied = RECIPES["deepscale"](read_structure(model_of(), torch.arange(24)[None]))
    first = "blocks.0.attention.value.weight"
    assert made[first].init.std < varied[first].init.std
    expected = math.sqrt(1 / (0.5 + 0.5 / 24 * math.exp(0.5))) / WIDTH
    assert made[first].init.std ** 2 == pytest.approx(expected, rel=0.02)


def test_deepscale_counts_tokens_that_repeat():
    """Two tokens in turn: the attended variance of each, by the sum over all pairs of keys."""
    batch = torch.arange(2).repeat(12)[None]
    structure = read_structure(model_of(), batch)
    found = RECIPES["deepscale"](structure)["blocks.0.attention.value.weight"].init.std ** 2
    kernel = 0.5 * torch.eye(24) + 0.5 * (batch[0][:, None] == batch[0])
    weights = kernel.exp()
    attended = float((weights * kernel).sum() / weights.sum())
    assert found == pytest.approx(math.sqrt(1 / attended) / WIDTH, rel=0.02)


@identity("deepscale_simple")
def test_deepscale_simple_draws_values_like_the_mlp():
    found = stds(raw("deepscale_simple"))
    for leaf in ("attention.value", "attention.output", "mlp.up", "mlp.down"):
        assert found[f"blocks.2.{leaf}.weight"] ** 2 == pytest.approx(math.sqrt(0.5) / WIDTH)


@identity("depth_scaling")
def test_depth_scaling_of_any_power():
    for k, alpha in ((1.0, 1.0), (2.0, 1.5), (3.0, 2.0)):
        rows = raw("depth_scaling", k=k, alpha=alpha).junctions
        assert [row.branch**2 for row in rows] == pytest.approx([k / DEPTH**alpha] * 2 * DEPTH)
        assert all(row.skip**2 + row.branch**2 == pytest.approx(1.0) for row in rows)
    assert {row.skip for row in raw("depth_scaling", skip="one").junctions} == {1.0}
    with pytest.raises(InputError, match="less than 1"):
        raw("depth_scaling", k=5.0)


def test_gated_mlps_are_sent_to_unit():
    with pytest.raises(UnsupportedError, match="unit"):
        plan(model_of(activation="swiglu"), "deepscale", batch=ids())


def test_the_share_of_branches_follows_any_power_of_depth():
    """App. L: b^2 = k / N^alpha."""
    structure = read_structure(model_of(), ids())
    made = RECIPES["deepscale"](structure, k=0.5, alpha=2.0)
    (share,) = {row.branch**2 for row in made.junctions}
    assert share == pytest.approx(0.5 / structure.layers(0) ** 2)
    assert "N^2" in made.junctions[0].why


def test_dropout_is_that_of_training_in_either_mode():
    model = model_of(dropout=0.2)
    plans = [RECIPES["deepscale"](read_structure(model.train(mode), ids())) for mode in (True, False)]
    assert [made.meta["dropout"] for made in plans] == [0.2, 0.2]
    first = "blocks.0.mlp.up.weight"
    assert plans[0][first].init == plans[1][first].init
    assert plans[0][first].init.std == pytest.approx((0.8 / 2) ** 0.25 / WIDTH**0.5)
