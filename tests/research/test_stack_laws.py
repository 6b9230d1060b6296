"""Laws of whole stacks: dslm Table 3 and App. F, preln, and the errata of the formula sheet."""

import math

import pytest
import torch

from sigprop.blueprints import predict
from sigprop.blueprints.inits import AttentionVariances, InitScheme, MLPVariances
from sigprop.blueprints.transformer import Transformer
from sigprop.errors import InputError, UnknownNameError
from sigprop.research import correlation
from sigprop.research.stack_laws import block_rows, depth_laws, growth_class, scaled_transformer, stack_laws


class Strengths(InitScheme):
    """Branch strengths `C1`, `C2` and unit query/key scores, as in dslm App. F."""

    def __init__(self, attention: float, mlp: float):
        self.strengths = attention, mlp

    def attention(self, blueprint, layer, x):
        d, keep = blueprint.width, 1 - blueprint.dropout
        value = math.sqrt(self.strengths[0] * keep) / d
        return AttentionVariances(1 / d, 1 / d, value, value)

    def mlp(self, blueprint, layer, x):
        weight = math.sqrt(self.strengths[1] * (1 - blueprint.dropout) / 2) / blueprint.width
        return MLPVariances(weight, weight)


def test_full_chain_fixed_points_with_query_and_key_paths():
    """FORMULAS 3, unit scores: r_x* = 0.884 and r_g* = 0.777: neither the paper's 0.87 nor the value path's 0.95."""
    blueprint = Transformer(
        depth=400, norm_placement="post", dropout=0.1, tokens=4096, width=8192, heads=8, init=Strengths(2.2, 0.4)
    )
    middle = block_rows(predict(blueprint).sites)[200]
    assert middle.token_correlation == pytest.approx(0.884, abs=0.03)
    assert middle.grad_token_correlation == pytest.approx(0.777, abs=0.03)


def test_growth_classes_of_known_sequences():
    n = torch.arange(1, 61, dtype=torch.float64)
    assert growth_class((2 + 0.5 * n).tolist()).kind == "linear"
    assert growth_class((n**-1.7).tolist()).kind == "power"
    assert growth_class((n**-1.7).tolist()).number == pytest.approx(-1.7, abs=0.05)
    exponential = growth_class((1.3 * torch.exp(-0.2 * n)).tolist())
    assert exponential.kind == "exponential"
    assert exponential.number == pytest.approx(-0.2, abs=1e-6)
    assert growth_class((1 + 0.2 * torch.sin(n)).tolist()).kind == "constant"
    with pytest.raises(InputError):
        growth_class([1.0, -1.0, 1.0, 1.0])
    with pytest.raises(InputError):
        growth_class([1.0, 2.0])


@pytest.mark.parametrize(
    ("scaling", "placement", "forward", "backward"),
    [
        ("vanilla", "pre", {"linear", "power"}, {"linear", "power"}),
        ("vanilla", "post", {"constant"}, {"exponential"}),
        ("deepscale", "pre", {"constant"}, {"constant"}),
        ("deepscale", "post", {"constant"}, {"constant"}),
        ("ds_init", "pre", {"constant"}, {"constant"}),
        ("layer_scale", "pre", {"constant"}, {"constant"}),
        ("deepnorm", "post", {"constant"}, {"constant"}),
    ],
)
def test_growth_with_depth_as_in_dslm_table_3(scaling, placement, forward, backward):
    ahead, back = depth_laws(scaling, norm_placement=placement, dropout=0.1)
    assert ahead.kind in forward
    assert back.kind in backward


def test_sensitivity_orders():
    """DSLM's sensitivity does not depend on depth; DS-Init's and DeepNorm's falls (dslm 5.6)."""

    def median(scaling, depth):
        return stack_laws(scaled_transformer(scaling, depth, norm_placement="post")).sensitivity_median

    assert median("deepscale", 96) == pytest.approx(median("deepscale", 24), rel=0.1)
    assert median("ds_init", 96) < 0.5 * median("ds_init", 24)
    assert median("deepnorm", 96) < 0.6 * median("deepnorm", 24)
    assert median("vanilla", 96) > 3.0 * median("vanilla", 24)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_sensitivity_counts_branches_alone(placement):
    """Layers followed one by one, as where each has a scale of its own, or all at once."""
    one, all_at_once = (
        stack_laws(Transformer(depth=24, norm_placement=placement, branch_scale=scale)) for scale in ([1.0] * 24, 1.0)
    )
    assert one.sensitivity_mean == pytest.approx(all_at_once.sensitivity_mean, rel=1e-6)


def test_rank_collapse_without_dropout_and_none_with():
    assert stack_laws(scaled_transformer("vanilla", 48, norm_placement="post")).collapse_layer is not None
    assert stack_laws(scaled_transformer("vanilla", 48, norm_placement="post", dropout=0.1)).collapse_layer is None
    with pytest.raises(UnknownNameError):
        scaled_transformer("deepscle", 12)


def test_larger_query_key_scale_raises_the_gradient():
    small, large = (
        stack_laws(Transformer(depth=12, norm_placement="post", query_key_gain=gain)).gradient_ratio
        for gain in (0.1, 2.0)
    )
    assert large > 1.5 * small


def test_pre_norm_recursion_and_bounds():
    recursion = correlation.pre_norm_recursion(24, tokens=16, correlation=0.2)
    for layer, level in enumerate(recursion.second_moment):
        assert 1 + layer / 2 <= level <= 1 + 3 * layer / 2
    single = correlation.pre_norm_recursion(10, tokens=1, correlation=0.0).second_moment
    assert single[-1] == pytest.approx(1 + 3 * 10 / 2)


def test_last_layer_gradient_laws():
    assert correlation.last_layer_gradient(192, 100, "post") == pytest.approx(8.0)
    shallow, deep = (correlation.last_layer_gradient(192, layers, "pre") for layers in (32, 128))
    assert math.log(deep / shallow) / math.log(4) == pytest.approx(-0.5, abs=0.02)


def test_post_norm_factor_is_not_two_thirds():
    assert correlation.post_norm_gradient_factor(0.0, 0.0, tokens=1) == pytest.approx(1.0)
    assert correlation.post_norm_gradient_factor(0.9, 0.0, tokens=16) == pytest.approx(1.0625 / 1.90625)
