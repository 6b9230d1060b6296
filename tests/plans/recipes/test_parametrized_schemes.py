"""Recipes that bring rates with their draws, or are for one placement of norms, against their papers."""

import pytest
import torch

import sigprop as sp
from sigprop.errors import InputError, UnsupportedError
from sigprop.models import build
from tests.plans.recipes.shared import identity

IDS = torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(0))


def gpt(width=64, depth=2, **settings):
    return build("transformer", vocabulary=19, context=12, width=width, depth=depth, heads=4, **settings)


@identity("u_mup")
def test_u_mup_is_the_papers_table_with_its_factors_folded_in():
    """Blake et al. 2024, table 2: 4 branches, width 64; hidden A = C = 1/sqrt(fan_in), readout A = 1/fan_in, C = 1."""
    made = sp.plan(gpt(), "u_mup", batch=IDS)
    rows = {name: made[name] for name in ("blocks.0.mlp.up.weight", "head.weight", "token_embedding.weight")}
    up, head, table = rows.values()
    assert (up.init.std, up.lr) == pytest.approx((1 / 8, 1 / 64 / 2))
    assert (head.init.std, head.lr) == pytest.approx((1 / 64, 1 / 64))
    assert (table.init.std, table.lr) == pytest.approx((1.0, 1 / 8))
    down = made["blocks.0.mlp.down.weight"]
    fan_in = down.shape[1]
    assert (down.init.std, down.lr) == pytest.approx((fan_in**-0.5 / 2, 1 / fan_in / 4))
    with pytest.raises(InputError, match="brings its own"):
        sp.plan(gpt(), "u_mup", width="mup", batch=IDS)


@identity("peri_ln")
def test_peri_ln_sets_the_gains_that_end_branches():
    hf = pytest.importorskip("transformers")
    config = hf.Gemma2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        intermediate_size=64, vocab_size=19, query_pre_attn_scalar=16,
    )  # fmt: skip
    model = hf.Gemma2ForCausalLM(config).eval()
    made = sp.plan(model, "peri_ln", batch={"input_ids": IDS}, gain=0.5)
    assert made["model.layers.1.post_feedforward_layernorm.weight"].init.value == pytest.approx(-0.5)  # 1 + w = 0.5
    assert made["model.layers.1.mlp.down_proj.weight"].init.std == pytest.approx(0.02)
    with pytest.raises(UnsupportedError, match="start and end in a norm"):
        sp.plan(gpt(), "peri_ln", batch=IDS)
