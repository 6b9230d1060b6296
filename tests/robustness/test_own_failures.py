"""A model that cannot be run, and recipes that a model cannot take: what is said is the reason."""

import pytest
import torch

import sigprop as sp
from sigprop.errors import InputError, UnsupportedError

IDS = torch.arange(16).reshape(2, 8)
WORDS = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture
def hf():
    return pytest.importorskip("transformers")


def xglm(hf):
    """In float64 its own forward raises: it fills a float32 tensor with the smallest float64."""
    sizes = {"d_model": 16, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 32}
    return hf.XGLMForCausalLM(hf.XGLMConfig(vocab_size=64, **sizes)).double()


def test_a_model_that_its_own_type_breaks_is_planned_and_its_own_error_is_told(hf):
    model = xglm(hf)
    with pytest.raises(RuntimeError, match="without overflow"):
        model(IDS)
    made = sp.plan(model, "unit", batch=IDS, k=0.5)
    assert len(made.junctions) == 4
    made.apply_(model)
    assert made.verify(model) == []
    with pytest.raises(InputError, match=r"'model\.layers\.0\.self_attn' with RuntimeError"):
        sp.measure(model, IDS)


def test_a_check_of_a_model_that_does_not_run_says_so_in_its_text(hf):
    text = sp.check(xglm(hf), IDS, prescription=False).text()
    assert "Not measured: XGLMForCausalLM failed on the batch" in " ".join(text.split())


def test_learned_scales_beside_a_factor_of_the_models_own(hf):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = hf.GraniteConfig(num_hidden_layers=2, residual_multiplier=0.22, **sizes, **WORDS)
    made = sp.plan(hf.GraniteForCausalLM(config), "layer_scale", batch=IDS, surgery=True)
    assert len(made.junctions) == 4


def test_an_activation_that_is_written_out_is_said_to_be(hf):
    model = hf.BloomForCausalLM(hf.BloomConfig(hidden_size=16, n_layer=2, n_head=2, **WORDS))
    with pytest.raises(UnsupportedError, match="or an activation that is written out"):
        sp.plan(model, "deepscale", batch=IDS)
