"""`unit` keeps the variance of the residual stream: predicted exactly, measured within its error; Xavier does not."""

import math

import pytest
import torch

from sigprop.capture.tracing import trace
from sigprop.errors import InputError, UnsupportedError
from sigprop.measurement import measure
from sigprop.models import build
from sigprop.plans.recipes import plan
from sigprop.plans.recipes.planned_states import PlannedStates, predict_plan, variance
from sigprop.plans.recipes.rows import RECIPES
from sigprop.plans.recipes.schemes.unit import _gradient_growth
from sigprop.structure import read_structure
from sigprop.structure.attention import score_variance
from tests.plans.recipes.shared import identity
from tests.plans.recipes.streams import batch_for, family, measure_stream

SEEDS = 12


def model_of(placement="pre", **settings):
    settings = {"kind": "decoder", "depth": 6, "width": 96, "heads": 4} | settings
    return build("transformer", norm_placement=placement, context=32, vocabulary=64, **settings)


def ids():
    return torch.randint(64, (1, 32), generator=torch.Generator().manual_seed(3))


def stream(model, recipe, batch, **options):
    structure = read_structure(model, batch)
    made = plan(model, recipe, structure=structure, **options)
    return measure_stream(model, structure, made, batch, SEEDS)


def within(found, tolerance=0.05):
    """Every sum within the tolerance of 1, give or take three standard errors."""
    pairs = zip(found.variance, found.error, strict=True)
    return all(abs(value - 1.0) <= tolerance + 3 * error for value, error in pairs)


@identity("unit")
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_measured_variance_is_kept_where_xavier_loses_it(placement, activation):
    model = model_of(placement, activation=activation)
    assert within(stream(model, "unit", ids()))
    assert not within(stream(model, "xavier", ids(), embedding=0.5**0.5))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_deepscale_keeps_it_too(kind):
    assert within(stream(model_of(kind=kind, activation="relu"), "deepscale", ids()))


@pytest.mark.parametrize("name", ["llama", "neox", "t5", "gemma2", "mixtral"])
def test_hugging_face_models(name):
    pytest.importorskip("transformers")
    model, batch = family(name, 4, 64), batch_for(name, 24)
    assert within(stream(model, "unit", batch, k=1.0))
    assert not within(stream(model, "xavier", batch))


def test_a_gain_that_enters_as_one_plus_w_is_set_to_a_constant():
    pytest.importorskip("transformers")
    made = plan(family("gemma2", 4, 64), "unit", batch=batch_for("gemma2", 24), k=1.0)
    first, second = (made[f"model.layers.0.{name}_layernorm.weight"] for name in ("post_attention", "post_feedforward"))
    assert made.meta["stream_variance"] == pytest.approx(1.0, rel=1e-5)
    assert 1.0 + first.init.value == pytest.approx(0.5 / 0.75**0.5, rel=1e-4)
    assert 1.0 + second.init.value == pytest.approx(0.5 / 0.75, rel=1e-4)
    assert (first.lr, first.weight_decay) == (pytest.approx(0.5 / 0.75**0.5), 0.0)


def test_another_trace_of_the_drawn_model_agrees():
    """A real draw of the folded plan, traced anew, has the predicted variances, up to its own draw."""
    model = model_of(width=256)
    made = plan(model, "unit", batch=ids())
    made.apply_(model, torch.Generator().manual_seed(0))
    structure = read_structure(model, ids())
    found = [
        variance(spot.total.node, structure.traced.states) * row.level**2
        for spot, row in zip(structure.sums, made.junctions, strict=True)
    ]
    spread = math.sqrt(2 / 256)
    assert found == pytest.approx([1.0] * 12, abs=4 * spread)


def test_ratio_of_branch_to_skip():
    structure = read_structure(model_of(), ids())
    for ratio in (0.5, 2.0):
        states = PlannedStates.under(structure, RECIPES["unit"](structure, ratio=ratio))
        shares = [variance(spot.branch.node, states) / variance(spot.skip.node, states) for spot in structure.sums]
        assert shares == pytest.approx([ratio] * 12, rel=1e-9)


def test_the_norm_before_a_tied_readout_takes_its_factor():
    model = model_of(tied_head=True)
    made = plan(model, "unit", batch=ids())
    assert made.meta["stream_variance"] == pytest.approx(1.0)
    assert made["token_embedding.weight"].init.std == pytest.approx(math.sqrt(0.5))
    gain = made["final_norm.weight"]
    assert (gain.init.value, gain.lr, gain.eps) == pytest.approx((math.sqrt(2 / 96), math.sqrt(2 / 96), math.sqrt(48)))
    logits = made.apply_(model, torch.Generator().manual_seed(0))(ids())
    assert float(logits.detach().std()) == pytest.approx(1.0, rel=0.2)


def test_tied_embeddings_without_a_norm_before_them_are_drawn_for_the_readout():
    made = plan(model_of("none", tied_head=True), "unit", batch=ids(), surgery=True)
    assert made.meta["stream_variance"] == pytest.approx(1 / 96)
    assert made["token_embedding.weight"].init.std == pytest.approx(math.sqrt(0.5 / 96))


def test_scales_of_the_model_itself_are_used():
    model = model_of("pre", skip_scale=math.sqrt(0.8), branch_scale=math.sqrt(0.2))
    made = plan(model, "unit", batch=ids())
    assert all(row.skip == row.branch == 1.0 for row in made.junctions)
    structure = read_structure(made.apply_(model, torch.Generator().manual_seed(0)), ids())
    assert [variance(spot.total.node, structure.traced.states) for spot in structure.sums] == pytest.approx(
        [1.0] * 12, abs=0.3
    )


def test_a_multiplier_of_the_models_branches_is_part_of_them():
    """As in Granite: `x + 0.2 f(x)` with skips of one."""
    model = model_of("pre", branch_scale=0.2)
    made = plan(model, "unit", batch=ids())
    assert all(row.skip < 1.0 for row in made.junctions)
    structure = read_structure(made.apply_(model, torch.Generator().manual_seed(0)), ids())
    levels = [row.level for row in made.junctions]
    found = [
        variance(spot.total.node, structure.traced.states) * level**2
        for spot, level in zip(structure.sums, levels, strict=True)
    ]
    assert found == pytest.approx([1.0] * 12, abs=0.3)


def test_scores_without_a_scale_are_capped():
    pytest.importorskip("transformers")
    model = family("t5", 3, 64)
    batch = batch_for("t5", 16)
    structure = read_structure(model, batch)
    made = plan(model, "unit", structure=structure, k=1.0)
    query = made["encoder.block.1.layer.0.SelfAttention.q.weight"].init.std
    assert 0.9 * 64**-0.5 * 16**-0.25 < query < 0.7 * 64**-0.5
    states = PlannedStates.under(structure, RECIPES["unit"](structure, k=1.0))
    drawn = [score_variance(spot.attention.sample(states)) for spot in structure.sums if spot.attention is not None]
    assert len(drawn) == 9
    assert drawn == pytest.approx([1.0] * 9, abs=0.3)


def test_a_ceiling_on_the_correlation_weakens_the_branches():
    structure = read_structure(model_of(), ids())
    free = predict_plan(structure, "unit").token_correlation[-1]
    made = plan(structure.model, "unit", structure=structure, correlation_ceiling=0.5 * free)
    assert made.meta["k"] < 2.0
    assert predict_plan(structure, "unit", k=made.meta["k"]).token_correlation[-1] <= 0.5 * free
    with pytest.raises(UnsupportedError, match="no branch strength"):
        plan(structure.model, "unit", structure=structure, correlation_ceiling=1e-4)


def test_a_bound_on_the_gradient_is_met():
    structure = read_structure(model_of(kind="encoder"), ids())
    free = abs(math.log(predict_plan(structure, "unit").gradient_growth))
    bound = math.exp(0.6 * free)
    made = plan(structure.model, "unit", structure=structure, gradient_ratio=bound)
    growth = predict_plan(structure, "unit", k=made.meta["k"]).gradient_growth
    assert made.meta["k"] < 2.0
    assert abs(math.log(growth)) <= math.log(bound) * 1.02


def test_prediction_without_a_recipe_is_the_models_own():
    model = model_of()
    structure = read_structure(model, ids())
    own = predict_plan(structure, None)
    again = trace(model, ids())
    values = [
        float(again.states.signal(item.node).summary()[1]) for name, item in again.sites if name.endswith("_residual")
    ]
    assert own.variance == pytest.approx(values, rel=0.02)


def test_the_gradient_ratio_is_kept_for_the_loss_at_hand():
    structure = read_structure(model_of(depth=6), ids())
    growths = {}
    for loss in ("noise", "cross_entropy"):
        made = RECIPES["unit"](structure, k=2.0, gradient_ratio=1.3, loss=loss)
        growths[loss] = _gradient_growth(structure, PlannedStates.under(structure, made), loss)
    assert all(abs(math.log(growth)) <= math.log(1.3) + 1e-6 for growth in growths.values())


def test_two_layers_lower_the_branch_share_by_themselves():
    made = plan(model_of(depth=2), "unit", batch=ids(), k=2.0)
    assert {round(row.branch**2, 9) for row in made.junctions} == {0.5}


def test_refuses_what_it_cannot_set():
    with pytest.raises(UnsupportedError, match="no residual junction"):
        plan(build("mlp", depth=2, width=8, inputs=8), "unit", batch=torch.randn(4, 8))
    with pytest.raises(InputError, match="positive"):
        plan(model_of(), "unit", batch=ids(), ratio=0.0)


def test_the_bound_holds_for_gates_and_experts_when_measured():
    """In the plan's own scale: folded, the stream is divided by its level, and gradients are multiplied by it."""
    hf = pytest.importorskip("transformers")
    config = hf.MixtralConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, intermediate_size=64,
        vocab_size=48, num_local_experts=4, num_experts_per_tok=2, pad_token_id=1,
    )  # fmt: skip
    model = hf.MixtralForCausalLM(config).eval()
    tokens = torch.randint(2, 48, (2, 16), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens}
    made = plan(model, "unit", batch=batch, gradient_ratio=1.8)
    assert made.meta["k"] < 1.0
    level = (made.junctions[0].level / made.junctions[-1].level) ** 2
    ratios = []
    for seed in range(8):
        torch.manual_seed(seed)
        rows = [row for row in measure(made.apply_(model), batch, junctions=True).sites if ".add" in row.name]
        ratios.append(math.log(rows[0].grad_variance / rows[-1].grad_variance / level))
    ratios = torch.tensor(ratios)
    assert ratios.mean() < math.log(1.8) + 4 * ratios.std() / math.sqrt(8)
