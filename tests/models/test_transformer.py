"""The Transformer against plain recomputation, and the choices it promises."""

import itertools

import pytest
import torch

from sigprop.errors import InputError
from sigprop.models import build, initialize_
from sigprop.models.layers import Residual
from sigprop.models.transformer import rotate

SMALL = {"vocabulary": 31, "context": 12, "width": 16, "depth": 2, "heads": 2}
TOKENS = torch.arange(20).reshape(2, 10)


@pytest.mark.parametrize(
    ("placement", "norm", "activation", "positions"),
    list(
        itertools.product(
            ("pre", "post", "sandwich", "none"),
            ("layer_norm", "rms_norm"),
            ("relu", "swiglu"),
            ("learned", "sinusoidal", "rotary"),
        )
    ),
)
def test_every_choice_builds_and_gives_every_parameter_a_gradient(placement, norm, activation, positions):
    torch.manual_seed(0)
    model = build(
        "transformer",
        **SMALL,
        norm_placement=placement,
        norm=norm,
        activation=activation,
        positions=positions,
    )
    logits = model(TOKENS)
    assert logits.shape == (2, 10, 31)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("key.bias"):  # softmax does not see a shift common to all keys
            assert parameter.grad.abs().sum() > 0, name


def test_module_names_are_those_of_the_docs():
    names = dict(build("transformer", **SMALL, activation="swiglu").named_modules())
    for name in ("query", "key", "value", "output"):
        assert f"blocks.1.attention.{name}" in names
    for name in (
        "mlp.gate",
        "mlp.up",
        "mlp.down",
        "attention_norm",
        "mlp_norm",
        "attention_residual",
        "mlp_residual",
    ):
        assert f"blocks.1.{name}" in names
    assert {"token_embedding", "position_embedding", "final_norm", "head"} <= set(names)


def test_decoder_is_causal_and_encoder_is_not():
    torch.manual_seed(0)
    changed = TOKENS.clone()
    changed[:, -1] += 1
    for kind, causal in (("decoder", True), ("encoder", False)):
        model = build("transformer", **SMALL, kind=kind)
        same = torch.equal(model(TOKENS)[:, :-1], model(changed)[:, :-1])
        assert same is causal


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_padding_does_not_reach_real_tokens(kind):
    torch.manual_seed(0)
    model = build("transformer", **SMALL, kind=kind)
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    changed = TOKENS.clone()
    changed[1, 6:] = 5
    torch.testing.assert_close(model(TOKENS, mask)[1, :6], model(changed, mask)[1, :6])
    torch.testing.assert_close(model(TOKENS, mask)[1, :6], model(TOKENS[1:, :6])[0])


def test_encoder_decoder_reads_its_source_and_is_causal_in_its_target():
    torch.manual_seed(0)
    model = build("transformer", **SMALL, kind="encoder_decoder")
    out = model(TOKENS, TOKENS)
    assert not torch.equal(out, model(TOKENS + 1, TOKENS))
    changed = TOKENS.clone()
    changed[:, -1] += 1
    torch.testing.assert_close(out[:, :-1], model(TOKENS, changed)[:, :-1], rtol=0, atol=1e-6)
    assert "decoder.blocks.0.cross_attention.query" in dict(model.named_modules())


def test_fused_qkv_equals_separate_projections():
    torch.manual_seed(0)
    separate, fused = build("transformer", **SMALL), build("transformer", **SMALL, fused_qkv=True)
    state = separate.state_dict()
    for i, kind in itertools.product(range(2), ("weight", "bias")):
        prefix = f"blocks.{i}.attention."
        state[f"{prefix}qkv.{kind}"] = torch.cat([state.pop(f"{prefix}{n}.{kind}") for n in ("query", "key", "value")])
    fused.load_state_dict(state)
    torch.testing.assert_close(separate(TOKENS), fused(TOKENS))


def test_rotary_scores_depend_on_distance_only():
    torch.manual_seed(0)
    query, key = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    rotated_query, rotated_key = rotate(query.expand(6, 8)), rotate(key.expand(6, 8))
    scores = rotated_query @ rotated_key.T
    for offset in range(-5, 6):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert scores.std() > 1e-3


def test_scales_enter_the_residual_and_may_be_learned():
    skip, branch = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(Residual(0.5, 2.0)(skip, branch), 0.5 * skip + 2 * branch)
    model = build("transformer", **SMALL, skip_scale=(0.9, 0.8), branch_scale=0.3, learnable_scales=True)
    parameters = dict(model.named_parameters())
    assert parameters["blocks.1.mlp_residual.skip_scale"].item() == pytest.approx(0.8)
    assert parameters["blocks.0.attention_residual.branch_scale"].item() == pytest.approx(0.3)


def test_tied_head_shares_the_embedding():
    model = build("transformer", **SMALL, tied_head=True)
    assert model.head.weight is model.token_embedding.weight


def test_initialize_draws_the_scheme_and_leaves_a_tied_head_to_the_embedding():
    model = build("transformer", **{**SMALL, "width": 128, "depth": 1}, tied_head=True)
    initialize_(model, "lecun", torch.Generator().manual_seed(0), embedding_std=0.5)
    weight = model.blocks[0].mlp.down.weight
    count = weight.numel()
    assert abs(weight.var().item() * 512 - 1) < 5 * (2 / count) ** 0.5
    embedding = model.token_embedding.weight
    assert abs(embedding.var().item() / 0.25 - 1) < 5 * (2 / embedding.numel()) ** 0.5


@pytest.mark.parametrize(
    "settings",
    [{"kind": "other"}, {"norm_placement": "mid"}, {"positions": "alibi"}, {"heads": 3}, {"dropout": 1.0}],
)
def test_wrong_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        build("transformer", **{**SMALL, **settings})


def test_wrong_number_of_scales_is_named():
    with pytest.raises(InputError, match="skip_scale has 3 values"):
        build("transformer", **SMALL, skip_scale=(1.0, 1.0, 1.0))
