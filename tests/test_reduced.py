"""Models too large to be run are verified by a small one of the same blocks, and say so."""

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop import prediction
from sigprop.errors import UnsupportedError
from sigprop.verification.reduced import smaller

transformers = pytest.importorskip("transformers")


@pytest.fixture
def nothing_is_small(monkeypatch):
    monkeypatch.setattr(prediction, "LARGEST", 1000)


def llama(**changes):
    sizes = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4}
    settings = sizes | {"intermediate_size": 1024, "vocab_size": 4000} | changes
    return transformers.LlamaConfig(**settings)


def test_the_small_model_has_the_same_blocks():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(llama()).eval()
    made = smaller(model)
    small = made.build()
    assert not small.training
    assert len(small.model.layers) == 2
    assert small.config.hidden_size == 256
    assert small.config.num_attention_heads == 4
    assert small.config.num_key_value_heads == 2
    assert "num_hidden_layers 2 for 6" in made.what
    assert model.config.hidden_size == 512


def test_rows_say_that_the_small_model_agrees(nothing_is_small):
    profile = sp.predict(llama(), tokens=16, verify=6)
    row = profile["model.layers.5.mlp.down_proj"]
    assert row.reason.endswith("verified at reduced size")
    assert row.status not in ("verified", "assumed")
    assert "hidden_size 256 for 512" in profile.meta["verification"]["reduced size"]


def test_what_the_small_model_disputes_is_a_guess(nothing_is_small, monkeypatch):
    from sigprop.verification import reduced

    theory = reduced.predict_by_theory

    def wrong(*args, **options):
        found = theory(*args, **options)
        found["model.layers.1.mlp.down_proj"].variance *= 3.0
        return found

    monkeypatch.setattr(reduced, "predict_by_theory", wrong)
    profile = sp.predict(llama(), tokens=16, verify=6)
    for layer in range(6):
        row = profile[f"model.layers.{layer}.mlp.down_proj"]
        assert row.status == "assumed"
        assert "disputed at reduced size" in row.reason
    assert profile["model.layers.3.mlp.up_proj"].status != "assumed"


def test_a_module_without_a_config_is_left_to_theory(nothing_is_small):
    batch = torch.randn(4, 32)
    profile = sp.predict(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), batch, verify=4)
    assert "no config" in profile.meta["verification"]
    assert all(row.status != "verified" for row in profile.sites)
    with pytest.raises(UnsupportedError, match="no config"):
        smaller(nn.Linear(2, 2))
