"""What measure accepts, finds and refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.errors import InputError, UnknownNameError
from sigprop.measurement import measure
from sigprop.measurement.parameters import spectral_norm
from sigprop.measurement.recorder import FORMATS, format_fractions
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.rows import ParameterPlan
from sigprop.results import Init, Profile

SMALL = {"vocabulary": 29, "context": 12, "width": 16, "depth": 2, "heads": 2}
TOKENS = torch.arange(36).reshape(3, 12) * 7 % 29


def small(**settings):
    torch.manual_seed(0)
    return build("transformer", **{**SMALL, **settings})


def same(left, right, rel=1e-9):
    assert [row.name for row in left] == [row.name for row in right]
    for ours, theirs in zip([*left, *left.parameters], [*right, *right.parameters], strict=True):
        for column in type(ours).COLUMNS:
            assert getattr(ours, column) == pytest.approx(getattr(theirs, column), rel=rel, abs=1e-12, nan_ok=True)


def test_tensor_tuple_dict_and_batch_encoding_mean_the_same():
    model = small()
    encoding = pytest.importorskip("transformers").BatchEncoding({"tokens": TOKENS})
    first = measure(model, TOKENS)
    for batch in ((TOKENS,), [TOKENS], {"tokens": TOKENS}, encoding):
        same(first, measure(model, batch))


def test_without_a_loss_the_output_meets_white_noise():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 400), nn.Linear(400, 100))
    profile = measure(model, torch.randn(64, 50))
    entries = 64 * 100
    assert abs(profile["1"].grad_variance - 1) < 5 * math.sqrt(2 / entries)
    assert profile.meta["loss"] == "noise"
    assert "loss_value" not in profile.meta


def test_loss_is_reported_and_scales_the_gradient():
    model = small()
    once = measure(model, TOKENS, lambda logits: logits.square().mean())
    thrice = measure(model, TOKENS, lambda logits: 3 * logits.square().mean())
    assert thrice.meta["loss_value"] == pytest.approx(3 * once.meta["loss_value"])
    assert thrice["head"].grad_variance == pytest.approx(9 * once["head"].grad_variance)


def test_a_loss_may_take_the_batch_as_well():
    model = small()
    alone = measure(model, TOKENS, lambda logits: F.cross_entropy(logits.flatten(0, 1), TOKENS.flatten()))
    paired = measure(model, TOKENS, lambda logits, batch: F.cross_entropy(logits.flatten(0, 1), batch.flatten()))
    same(alone, paired)


def test_padding_is_left_out():
    """Garbage behind the mask does not change a number."""
    model = small(kind="encoder")
    mask = torch.ones(3, 12)
    mask[1, 5:] = 0
    garbage = TOKENS.clone()
    garbage[1, 5:] = 3
    loss = lambda logits: (logits.square().sum(-1) * mask).mean()  # noqa: E731
    left = measure(model, {"tokens": TOKENS, "attention_mask": mask}, loss)
    right = measure(model, {"tokens": garbage, "attention_mask": mask}, loss)
    same(Profile(left.sites), Profile(right.sites), rel=1e-5)
    ignored = measure(model, {"tokens": TOKENS}, loss)
    assert ignored["token_embedding"].variance != pytest.approx(left["token_embedding"].variance, rel=1e-6)
    given = measure(model, TOKENS, loss, mask=mask)["token_embedding"]
    assert given.variance == pytest.approx(left["token_embedding"].variance, rel=1e-12)


def test_token_axis_can_be_overridden():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8))
    x = torch.randn(6, 4, 8)
    ours = measure(model, x.transpose(0, 1).contiguous(), token_axes=0)["0"]
    assert ours.token_correlation == pytest.approx(measure(model, x)["0"].token_correlation, abs=1e-7)
    by_name = measure(model, x, token_axes=lambda name, tensor: (1, 2))["0"]
    assert by_name.token_correlation != pytest.approx(measure(model, x)["0"].token_correlation, abs=1e-3)
    with pytest.raises(InputError, match="token_axes = 5"):
        measure(model, x, token_axes=5)


def test_images_have_pixels_as_tokens():
    torch.manual_seed(0)
    model = build("resnet", channels=1, width=4, depth=1, norm="layer_norm")
    images = torch.zeros(2, 1, 8, 8)
    images[0], images[1] = 1.0, -1.0
    row = measure(model.stem, images)["(output)"]
    inner = model.stem(images)[:, :, 2:-2, 2:-2].flatten(2)
    assert torch.allclose(inner, inner[..., :1].expand_as(inner))
    assert row.token_correlation > 0.8


def test_sites_by_name_and_pattern():
    model = small()
    names = [row.name for row in measure(model, TOKENS, sites=["*.mlp", "head"])]
    assert names == ["blocks.0.mlp", "blocks.1.mlp", "head"]
    with pytest.raises(UnknownNameError, match=r"blocks\.0\.mlp"):
        measure(model, TOKENS, sites="blocks.0.mpl")
    with pytest.raises(UnknownNameError, match="scores=True"):
        measure(model, TOKENS, sites="*.scores")


def test_depth_counts_blocks():
    depths = {row.name: row.depth for row in measure(small(), TOKENS)}
    assert depths["token_embedding"] == 0
    assert depths["blocks.0.mlp.up"] == depths["blocks.0"] == 1
    assert depths["blocks.1"] == depths["head"] == 2


def test_a_shared_layer_has_a_row_for_each_call(make_specimen):
    model, batch, loss = make_specimen("shared layer")
    profile = measure(model, batch, loss)
    assert {"layer", "layer@2", "layer@3"} <= {row.name for row in profile}
    assert profile["layer"].variance != pytest.approx(profile["layer@3"].variance, rel=1e-3)


def test_outputs_in_tuples_and_dicts_are_named(make_specimen):
    profile = measure(*make_specimen("odd outputs"))
    names = [row.name for row in profile]
    assert "pair" in names
    assert "pair[1][0]" in names
    assert "named" in names
    assert not any(name.startswith("silent") for name in names)
    assert profile["pair[1][0]"].variance == pytest.approx(4 * profile["embedding"].variance, rel=1e-6)


def test_seeds_repeat_and_differ():
    factory = lambda: build("transformer", **SMALL, dropout=0.1)  # noqa: E731
    first = measure(None, TOKENS, build=factory, seeds=3)
    torch.manual_seed(99)
    again = measure(None, TOKENS, build=factory, seeds=3)
    assert first.to_dict() == again.to_dict() or first.to_json() == again.to_json()
    other = measure(None, TOKENS, build=factory, seeds=[7, 8, 9])
    assert other["blocks.1"].variance != first["blocks.1"].variance


def test_mean_standard_error_and_median_over_seeds():
    factory = lambda: build("mlp", inputs=64, width=20, depth=2, outputs=3)  # noqa: E731
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    together = measure(None, x, build=factory, seeds=[3, 4, 5])
    alone = [measure(None, x, build=factory, seeds=[seed])["blocks.1"].variance for seed in (3, 4, 5)]
    row = together["blocks.1"]
    spread = torch.tensor(alone, dtype=torch.float64)
    assert row.variance == pytest.approx(float(spread.mean()))
    assert row.errors["variance"] == pytest.approx(float(spread.std()) / math.sqrt(3))
    assert row.medians["variance"] == pytest.approx(float(spread.median()))
    assert together.meta["seeds"] == [3, 4, 5]
    parameter = together.parameter("blocks.0.linear.weight")
    assert parameter.errors["grad_second_moment"] > 0


def test_white_noise_is_drawn_anew_for_each_seed():
    """One noise for all seeds hides the largest part of the spread where the weights do not vary."""

    def factory():
        layer = nn.Linear(64, 1, bias=False)
        nn.init.constant_(layer.weight, 1.0)
        return layer

    row = measure(None, torch.randn(4, 64), build=factory, seeds=400)["(output)"]
    deviation = math.sqrt(2 / 4 / 400)  # of the mean over 400 seeds of the mean square of 4 normal numbers
    assert abs(row.grad_variance - 1) < 4 * deviation
    assert row.errors["grad_variance"] == pytest.approx(deviation, rel=0.25)


def test_white_noise_is_independent_of_weights_of_the_same_seed():
    factory = lambda: nn.Linear(1, 512, bias=False)  # noqa: E731
    weights, noises = [], []
    for seed in range(4):
        profile = measure(None, torch.ones(1, 1), build=_unit_normal(factory), seeds=[seed])
        weights.append(profile["(output)"].variance + profile["(output)"].mean ** 2)
        noises.append(profile["(output)"].grad_variance)
    assert all(abs(one - other) > 1e-4 for one, other in zip(weights, noises, strict=True))


class Noisy(nn.Module):
    """Draws noise in every pass, as slot attention and variational models do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(48))

    def forward(self, x):
        return x + self.scale * torch.randn(x.shape)


def test_noise_that_a_model_draws_is_independent_of_the_gradient_it_meets():
    """Of a seed torch's generator on a CPU reads 32 bits: a stream that stood above them drew the model's numbers."""
    rows = 16
    actual = measure(None, torch.randn(rows, 48), build=Noisy, seeds=20).parameter("scale")
    deviation = rows * math.sqrt(2 * (1 + 3 / rows) / (48 * 20))  # of sums of products of normal numbers
    assert abs(actual.grad_second_moment - rows) < 5 * deviation


def _unit_normal(factory):
    def make():
        layer = factory()
        nn.init.normal_(layer.weight)
        return layer

    return make


def test_a_plan_is_applied_to_copies():
    model = small()
    rows = [ParameterPlan(name, tuple(p.shape), Init("normal", 0.5)) for name, p in model.named_parameters()]
    before = model.head.weight.detach().clone()
    profile = measure(model, TOKENS, build=Plan(rows), seeds=4)
    assert torch.equal(model.head.weight, before)
    row = profile.parameter("head.weight")
    entries = model.head.weight.numel() * 4
    assert abs(row.extras["second_moment"] / 0.25 - 1) < 5 * math.sqrt(2 / entries)
    assert row.errors["init_std"] > 0


def test_the_first_value_that_is_not_finite_is_named():
    model = small()
    with torch.no_grad():
        model.blocks[1].mlp.up.weight[0, 0] = math.inf
    profile = measure(model, TOKENS, lambda logits: logits.square().mean())
    assert profile.meta["first_non_finite"] == "blocks.1.mlp.up"
    assert "not finite" in profile["blocks.1.mlp.up"].reason
    assert math.isfinite(profile["blocks.1.attention"].variance)
    assert profile.meta["first_non_finite_gradient"] == "head"


def test_a_gradient_that_overflows_is_named():
    model = small()
    poison = lambda logits: (logits.sum(-1) * 1e30).square().mean() * 1e30  # noqa: E731
    assert "first_non_finite_gradient" in measure(model, TOKENS, poison).meta


def test_infinities_of_both_signs_over_seeds():
    """One network overflows upwards, the other downwards: their mean is no number, and no crash."""

    def build_infinite():
        model = nn.Linear(4, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(math.inf if torch.initial_seed() % 2 else -math.inf)
        return model

    profile = measure(None, torch.ones(2, 4), build=build_infinite, seeds=2, backward=False)
    assert math.isnan(profile["(output)"].mean)
    assert profile.meta["first_non_finite"] == "(output)"
    assert "mean" not in profile["(output)"].errors


@pytest.mark.parametrize("causal", [True, False])
def test_attention_scores(causal):
    """Fused attention against scores, weights and score gradients computed by autograd."""
    torch.manual_seed(0)
    model = small(kind="decoder" if causal else "encoder")
    loss = lambda logits: logits.square().mean()  # noqa: E731
    row = measure(model, TOKENS, loss, scores=True)["blocks.1.attention.scores"]

    attention = model.blocks[1].attention
    kept = {}

    def explicit(query, key, value, **options):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -math.inf)
        kept["scores"] = scores
        scores.retain_grad()
        return scores.softmax(-1) @ value

    fused = F.scaled_dot_product_attention
    attention.register_forward_pre_hook(lambda *a: setattr(F, "scaled_dot_product_attention", explicit))
    attention.register_forward_hook(lambda *a: setattr(F, "scaled_dot_product_attention", fused))
    loss(model(TOKENS)).backward()
    scores = kept["scores"].detach().double()
    allowed = scores.isfinite()
    weights = scores.softmax(-1)
    assert row.mean == pytest.approx(float(scores[allowed].mean()), rel=1e-5)
    assert row.variance == pytest.approx(float(scores[allowed].var(correction=0)), rel=1e-5)
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean()
    assert row.extras["entropy"] == pytest.approx(float(entropy), rel=1e-6)
    assert row.extras["largest_weight"] == pytest.approx(float(weights.amax(-1).mean()), rel=1e-6)
    gradient = kept["scores"].grad.double()[allowed]
    assert row.grad_variance == pytest.approx(float(gradient.square().mean()), rel=1e-4)


def test_attention_scores_of_every_spelling_agree():
    """Hugging Face's eager softmax, its fused attention, and nn.MultiheadAttention."""
    transformers = pytest.importorskip("transformers")
    settings = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 29, "n_positions": 12, "attn_pdrop": 0.0}
    rows = []
    for kind in ("eager", "sdpa"):
        torch.manual_seed(0)
        config = transformers.GPT2Config(**settings, attn_implementation=kind)
        model = transformers.GPT2LMHeadModel(config).eval()
        profile = measure(model, {"input_ids": TOKENS, "labels": TOKENS}, scores=True)
        rows.append(profile["transformer.h.0.attn.scores"])
    assert rows[0].variance == pytest.approx(rows[1].variance, rel=1e-5)
    assert rows[0].extras["entropy"] == pytest.approx(rows[1].extras["entropy"], rel=1e-5)
    assert rows[0].grad_variance == pytest.approx(rows[1].grad_variance, rel=1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_scores_inside_multihead_attention(bias):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, bias=bias, batch_first=True)
    x = torch.randn(3, 5, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            return self.attention(x, x, x, key_padding_mask=padding, attn_mask=hidden, average_attn_weights=False)

    row = measure(Wrapped(), x, lambda output: output[0].sum(), scores=True)["attention.scores"]
    weights = Wrapped()(x)[1].detach().double()
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean()
    assert row.extras["entropy"] == pytest.approx(float(entropy), rel=1e-5)
    assert row.extras["largest_weight"] == pytest.approx(float(weights.amax(-1).mean()), rel=1e-5)


def test_residual_junctions_and_no_other_additions():
    """Rotary positions and biases add too, but are no junctions."""
    model = small(positions="rotary", skip_scale=0.8, branch_scale=0.3)
    names = [row.name for row in measure(model, TOKENS, junctions=True) if ".add" in row.name]
    assert names == [f"blocks.{i}.{kind}_residual.add" for i in range(2) for kind in ("attention", "mlp")]


def test_junctions_of_hugging_face_models(make_specimen):
    profile = measure(*make_specimen("llama"), junctions=True)
    names = [row.name for row in profile if ".add" in row.name]
    assert names == [f"model.layers.{i}.add{suffix}" for i in range(2) for suffix in ("", "@2")]
    last = profile["model.layers.1.add@2"]
    assert last.variance == pytest.approx(profile["model.layers.1"].variance)
    assert last.grad_variance == pytest.approx(profile["model.layers.1"].grad_variance)


def test_low_precision_fractions_against_casting():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 40, generator=generator) * 10.0 ** torch.randint(-12, 7, (2, 50, 40), generator=generator)
    kinds = {"fp16": torch.float16, "fp8_e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}
    found = format_fractions(x)
    for name, dtype in kinds.items():
        cast = x.to(dtype).float()
        assert float(found[f"{name}_underflow"]) == pytest.approx(float(((cast == 0) & (x != 0)).double().mean()))
        limit = torch.finfo(dtype).max
        assert float(found[f"{name}_overflow"]) == pytest.approx(float((x.abs() > limit).double().mean()))
    cast = x.to(torch.float8_e4m3fn).float()
    assert float(found["fp8_e4m3_underflow"]) == pytest.approx(float(((cast == 0) & (x != 0)).double().mean()))
    assert float(found["fp8_e4m3_overflow"]) == pytest.approx(float((x.abs() > 448).double().mean()))
    assert set(FORMATS) == {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}
    extras = measure(small(), TOKENS, formats=True)["blocks.0"].extras
    assert {"grad_fp16_underflow", "fp8_e4m3_overflow"} <= set(extras)


@pytest.mark.parametrize("shape", [(30, 20), (600, 700)])
def test_spectral_norm(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight[0] *= 5
    exact = torch.linalg.svdvals(weight.double())[0]
    assert spectral_norm(weight) == pytest.approx(float(exact), rel=1e-4)


def test_autocast_and_low_precision_models():
    """Sites keep the model's own type; the sums do not: 4096 equal values of 0.1 have no variance."""
    with torch.autocast("cpu", torch.bfloat16):
        mixed = measure(small(), TOKENS, lambda logits: logits.float().square().mean())
    full = measure(small(), TOKENS, lambda logits: logits.square().mean())
    assert mixed["blocks.1"].variance == pytest.approx(full["blocks.1"].variance, rel=0.05)
    assert mixed["blocks.1"].variance != full["blocks.1"].variance
    low = nn.Sequential(nn.Identity(), nn.Linear(64, 2)).bfloat16()
    row = measure(low, torch.full((64, 64), 0.1, dtype=torch.bfloat16))["0"]
    assert row.mean == pytest.approx(float(torch.tensor(0.1, dtype=torch.bfloat16)), rel=1e-12)
    assert row.variance < 1e-15


def test_works_under_no_grad():
    with torch.no_grad():
        same(measure(small(), TOKENS), measure(small(), TOKENS))
    model = small()
    with torch.inference_mode():
        assert measure(model, TOKENS.clone())["head"].grad_variance > 0


def test_a_batch_the_model_rejects():
    with pytest.raises(InputError) as caught:
        measure(small(), torch.randn(2, 3))
    text = str(caught.value)
    assert "token_embedding" in text
    assert "tokens: 'Tensor'" in text or "tokens: Tensor" in text
    assert "(2, 3) of float32" in text
    with pytest.raises(InputError, match="unexpected keyword"):
        measure(small(), {"words": TOKENS})


def test_outputs_and_losses_that_cannot_be_used():
    class Integers(nn.Module):
        def forward(self, x):
            return x.long()

    with pytest.raises(InputError, match="floating-point"):
        measure(Integers(), torch.ones(2, 3))
    model = small()
    with pytest.raises(InputError, match="carries no gradient"):
        measure(model, TOKENS, lambda logits: logits.detach().mean())
    with pytest.raises(InputError, match="one number"):
        measure(model, TOKENS, lambda logits: logits)
    model.requires_grad_(False)
    with pytest.raises(InputError, match="backward=False"):
        measure(model, TOKENS)
    forward = measure(model, TOKENS, backward=False)
    assert math.isnan(forward["head"].grad_variance)
    assert forward["head"].variance > 0


def test_arguments_that_do_not_fit():
    with pytest.raises(InputError, match=r"nn\.Module"):
        measure(None, TOKENS)
    with pytest.raises(InputError, match="seeds needs build"):
        measure(small(), TOKENS, seeds=3)
    with pytest.raises(InputError, match="at least one seed"):
        measure(None, TOKENS, build=small, seeds=0)
    with pytest.raises(InputError, match="build returned int"):
        measure(None, TOKENS, build=lambda: 3, seeds=1)
    with pytest.raises(InputError, match="mask has shape"):
        measure(small(), TOKENS, mask=torch.ones(3))
    with pytest.raises(InputError, match=r"mask of shape \(3, 11\) fits no site"):
        measure(small(), TOKENS, mask=torch.ones(3, 11))


def test_json_round_trip():
    profile = measure(small(), TOKENS, scores=True, formats=True)
    again = Profile.from_json(profile.to_json())
    assert again.to_json() == profile.to_json()
