"""Junctions, last weights, norm placement and roles, found on models that spell them differently."""

import pytest
import torch
from torch import nn

from sigprop.models import build
from sigprop.structure import read_structure


def ids():
    return torch.randint(50, (1, 12), generator=torch.Generator().manual_seed(0))


def hugging_face(name):
    hf = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
    wide = {"intermediate_size": 64, "bos_token_id": 0, "eos_token_id": 0}
    models = {
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0)
        ),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**shape, **wide, num_key_value_heads=2)),
        "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**shape, **wide)),
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**shape, intermediate_size=64)),
        "mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**shape, **wide, num_key_value_heads=2, num_local_experts=3, pad_token_id=1)
        ),
        "gemma2": lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(**shape, intermediate_size=64, num_key_value_heads=2, head_dim=8)
        ),
    }
    return read_structure(models[name]().eval(), {"input_ids": ids()})


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "none"])
def test_reference_transformer(placement):
    structure = read_structure(build("transformer", depth=3, width=16, heads=2, norm_placement=placement), ids())
    assert len(structure.junctions) == 6
    assert structure.layers() == 3
    assert structure.placement == {"sandwich": "pre"}.get(placement, placement)
    ends = "attention_output_norm" if placement == "sandwich" else "attention.output"
    assert structure.junctions[2].weights == (f"blocks.1.{ends}.weight", f"blocks.1.{ends}.bias")
    assert all(junction.scale_free == (placement != "none") for junction in structure.junctions)
    assert [junction.attention for junction in structure.junctions] == [True, False] * 3


def test_encoder_decoder_has_two_streams():
    structure = read_structure(build("transformer", kind="encoder_decoder", depth=2, width=16, heads=2), (ids(), ids()))
    assert [len(stream) for stream in structure.streams] == [4, 6]
    assert [junction.cross for junction in structure.streams[1]] == [False, True, False] * 2
    assert structure.kinds == (2, 2)


@pytest.mark.parametrize(
    ("name", "placement", "exits"),
    [
        ("gpt2", "pre", ("transformer.h.1.attn", "transformer.h.1.mlp")),
        ("llama", "pre", ("model.layers.1.self_attn", "model.layers.1.mlp")),
        ("bert", "post", ("bert.encoder.layer.1.attention.output.dropout", "bert.encoder.layer.1.output.dropout")),
        ("gemma2", "pre", ("model.layers.1.post_attention_layernorm", "model.layers.1.post_feedforward_layernorm")),
    ],
)
def test_hugging_face_junctions(name, placement, exits):
    structure = hugging_face(name)
    assert structure.placement == placement
    assert tuple(junction.exit for junction in structure.junctions[2:]) == exits
    assert all(junction.scale_free and junction.entry for junction in structure.junctions)


def test_a_branch_that_ends_in_one_plus_a_gain():
    structure = hugging_face("gemma2")
    junction = structure.junctions[0]
    assert junction.weights == ("model.layers.0.post_attention_layernorm.weight",)
    assert junction.shift == 1.0
    assert hugging_face("llama").junctions[0].shift == 0.0


def test_experts_end_their_branch_together():
    structure = hugging_face("mixtral")
    assert structure.junctions[1].weights == ("model.layers.0.mlp.experts.down_proj",)
    assert structure.parameters["model.layers.0.mlp.experts.down_proj"].role == "output"
    assert structure.parameters["model.layers.0.mlp.gate.weight"].role == "router"


def test_a_nested_residual_is_not_linear_in_its_last_weights():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, tokens):
            x = self.embed(tokens)
            y = self.first(x)
            return self.head(x + torch.relu(y + self.second(torch.tanh(y))))

    assert [junction.weights for junction in read_structure(Nested(), ids()).junctions][-1] == ()


def test_views_of_the_stream_do_not_hide_its_norms():
    hf = pytest.importorskip("transformers")
    config = hf.OPTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50, ffn_dim=64, word_embed_proj_dim=32,
        bos_token_id=0, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    structure = read_structure(hf.OPTForCausalLM(config).eval(), {"input_ids": ids()})
    assert len(structure.junctions) == 4
    assert all(junction.scale_free for junction in structure.junctions)
    assert [junction.previous for junction in structure.junctions] == [None, 0, 1, 2]


def test_parallel_branches_share_one_sum():
    first, second = hugging_face("neox").junctions[:2]
    assert first.order == second.order == 1
    assert not first.parallel
    assert second.parallel
    assert second.previous == 0


def test_fused_matrices_are_taken_apart():
    contiguous = hugging_face("gpt2").parameters["transformer.h.0.attn.c_attn.weight"]
    assert [(part.role, part.size) for part in contiguous.parts] == [("query_key", 64), ("value", 32)]
    assert contiguous.axis == 1
    by_head = hugging_face("neox").parameters["gpt_neox.layers.0.attention.query_key_value.weight"]
    assert [(part.role, part.size) for part in by_head.parts] == [("query_key", 16), ("value", 8)] * 4
    assert by_head.axis == 0


def test_roles_and_fans():
    structure = hugging_face("llama")
    roles = {name: item.role for name, item in structure.parameters.items()}
    assert roles["model.layers.0.self_attn.k_proj.weight"] == "query_key"
    assert roles["model.layers.0.self_attn.v_proj.weight"] == "value"
    assert roles["model.layers.0.mlp.gate_proj.weight"] == "hidden"
    assert roles["model.layers.0.mlp.down_proj.weight"] == "output"
    assert roles["lm_head.weight"] == "readout"
    assert roles["model.norm.weight"] == "norm gain"
    down = structure.parameters["model.layers.0.mlp.down_proj.weight"]
    assert (down.fan_in, down.fan_out) == (64, 32)
    assert hugging_face("gpt2").parameters["transformer.wte.weight"].tied


def test_sums_that_are_not_residual_are_left_alone():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 50)

        def forward(self, tokens):
            x = self.embed(tokens)
            return self.head(self.first(x) + self.second(x) + torch.tanh(x) * 0.5)

    assert read_structure(Plain(), ids()).junctions == []


def test_a_normed_sum_that_the_stream_goes_past_is_not_post_ln():
    """Zamba's layers: a sum goes only into the norm of a branch, and the stream goes on without it."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.norm, self.mixer = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            return x + self.mixer(self.norm(x + self.shared(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)
            self.layers = nn.Sequential(Layer(), Layer())

        def forward(self, tokens):
            return self.head(self.layers(self.embed(tokens)))

    assert "post" not in {junction.placement for junction in read_structure(Model(), ids()).junctions}
