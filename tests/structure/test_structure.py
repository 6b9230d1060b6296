"""Structure read off the trace: junctions, last weights, placements, blocks and roles."""

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.capture import build
from sigprop.inputs.synthetic import zipf_ids
from sigprop.models import build as reference
from sigprop.structure import from_trace, read_structure

IDS = zipf_ids(64, (1, 12))


def structure_of(**settings):
    make = lambda: reference("transformer", width=32, depth=3, vocabulary=64, context=16, **settings)  # noqa: E731
    return read_structure(build(make), IDS)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "none"])
def test_junctions_of_a_transformer(placement):
    found = structure_of(norm_placement=placement)
    assert len(found.junctions) == 6
    assert {junction.placement for junction in found.junctions} == {{"sandwich": "pre"}.get(placement, placement)}
    assert {"out" in junction.norms for junction in found.junctions} == {placement == "sandwich"}
    assert [junction.kind for junction in found.junctions] == ["attention", "mlp"] * 3
    assert found.blocks == (("blocks.0", "blocks.1", "blocks.2"),)
    assert found.final_norm == ("final_norm" if placement in ("pre", "sandwich") else found.final_norm)


def test_scales_are_read():
    junction = structure_of(skip_scale=0.5, branch_scale=0.25).junctions[2]
    assert junction.skip_scale == pytest.approx(0.5)
    assert junction.branch_scale == pytest.approx(0.25)


def test_roles():
    roles = {name: info.role for name, info in structure_of(tied_head=False).parameters.items()}
    assert roles["token_embedding.weight"] == "embedding"
    assert roles["position_embedding.weight"] == "positional"
    assert roles["blocks.1.mlp.up.weight"] == "hidden"
    assert roles["blocks.1.mlp.down.weight"] == "output"
    assert roles["blocks.1.mlp.up.bias"] == "bias"
    assert roles["blocks.1.mlp_norm.weight"] == "norm gain"
    assert roles["head.weight"] == "readout"
    assert "unused" not in roles.values()


def test_fans_and_blocks():
    info = structure_of().parameters["blocks.2.mlp.down.weight"]
    assert (info.fan_in, info.fan_out, info.block) == (128, 32, "blocks.2")


def test_tied_head():
    info = structure_of(tied_head=True).parameters["token_embedding.weight"]
    assert info.role == "embedding"
    assert info.tied


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.left, self.right, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        h = self.norm(x)
        return self.head(x + self.left(h) + self.right(h).relu())


def test_branches_added_one_after_the_other():
    found = read_structure(build(Parallel), torch.randn(5, 8))
    assert [junction.weights for junction in found.junctions] == [("left.weight", "left.bias"), ()]
    assert found.parameters["first.weight"].role == "input"


def test_projected_skip_of_a_resnet():
    model = build(lambda: reference("resnet", width=4, depth=1).eval())
    found = read_structure(model, torch.randn(1, 3, 8, 8))
    assert [junction.projected for junction in found.junctions] == [False, True, True]
    assert {junction.placement for junction in found.junctions} == {"pre"}
    assert found.final_norm == "final_norm"
    assert all(junction.kind == "convolution" for junction in found.junctions)


def hugging_face(name, **settings):
    hf = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "bos_token_id": 0}
    config = getattr(hf, f"{name}Config")(**shape, intermediate_size=48, eos_token_id=0, pad_token_id=1, **settings)
    model = build(lambda: getattr(hf, f"{name}ForCausalLM")(config)).eval()
    return read_structure(model, {"input_ids": IDS})


def test_rotary_sums_and_spelt_out_norms_are_no_junctions():
    found = hugging_face("Llama")
    assert [junction.name for junction in found.junctions] == [
        f"model.layers.{layer}.add{count}" for layer in range(2) for count in ("", "@2")
    ]
    assert {junction.placement for junction in found.junctions} == {"pre"}


def test_parallel_attention_is_attention():
    first, second = hugging_face("GPTNeoX").junctions[:2]
    assert sorted((first.kind, second.kind)) == ["attention", "mlp"]
    assert first.name == second.name


def test_the_router_does_not_end_a_branch():
    found = hugging_face("Mixtral", num_key_value_heads=2, num_local_experts=3)
    assert found.junctions[1].weights == ("model.layers.0.mlp.experts.down_proj",)


def test_experts_and_router():
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=64, num_local_experts=3, bos_token_id=0, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    model = build(lambda: transformers.MixtralForCausalLM(config)).eval()
    parameters = read_structure(model, {"input_ids": IDS}).parameters
    roles = {name.split("layers.0.")[-1]: info.role for name, info in parameters.items()}
    assert roles["mlp.gate.weight"] == "router"
    assert roles["mlp.experts.gate_up_proj"] == "hidden"
    assert {name.split("layers.0.")[-1] for name, info in parameters.items() if info.expert} == {
        "mlp.experts.gate_up_proj",
        "mlp.experts.down_proj",
    }
    assert roles["lm_head.weight"] == "readout"


def test_a_numbered_container_is_no_block():
    """`nn.Sequential(embedding, encoder)`: the blocks are the encoder's layers, not the one module that holds them."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(32, 16), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    found = read_structure(model.eval(), torch.zeros(1, 8, dtype=torch.long))
    assert found.blocks == (("1.layers.0", "1.layers.1", "1.layers.2"),)


def test_a_plan_reads_few_examples_of_a_large_batch(monkeypatch):
    """All pairs of 16 x 12 x 12 positions took minutes."""
    seen = []

    def spied(model, batch, positions=0):
        seen.append(len(batch))
        return read_structure(model, batch, positions)

    monkeypatch.setattr(from_trace, "read_structure", spied)
    model = reference("resnet", depth=1, width=8)
    channels = next(model.parameters()).shape[1]
    x = torch.randn(16, channels, 12, 12, generator=torch.Generator().manual_seed(0))
    made, small = sp.plan(model, "xavier", batch=x), sp.plan(model, "xavier", batch=x[:4])
    assert max(seen) == 16
    assert seen.count(4) == 2
    assert [(row.name, row.init) for row in made.parameters] == [(row.name, row.init) for row in small.parameters]
    assert from_trace.structure_of(model, x).batch is x
