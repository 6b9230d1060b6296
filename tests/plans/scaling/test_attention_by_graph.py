"""The trace says what a query is: neither names nor the place of a projection decide how attention takes its 1/d."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sigprop as sp
from sigprop.plans.scaling import coord_check
from sigprop.plans.scaling import plan as prescribe

HEADS, VOCABULARY = 2, 23


def attend(query, key, value):
    query, key, value = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


class Named(nn.Module):
    """A fused projection under a name that says nothing."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        return self.b(attend(*self.a(x).chunk(3, -1)))


class Bare(nn.Module):
    """Fused bare parameters."""

    def __init__(self, width):
        super().__init__()
        self.inward = nn.Parameter(torch.randn(3 * width, width) / math.sqrt(width))
        self.outward = nn.Parameter(torch.randn(width, width) / math.sqrt(width))

    def forward(self, x):
        return F.linear(attend(*F.linear(x, self.inward).chunk(3, -1)), self.outward)


class Interleaved(nn.Module):
    """Head by head: query, key, value side by side, as Falcon without multi-query has them."""

    def __init__(self, width):
        super().__init__()
        self.fused, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        split = self.fused(x).unflatten(-1, (HEADS, 3, -1))
        return self.out(attend(*(split[..., place, :].flatten(2) for place in range(3))))


class ConstantKeys(nn.Module):
    """One key and value head of constant size times a growing number of query heads."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // 8
        self.one, self.two, self.three = nn.Linear(width, width), nn.Linear(width, 8), nn.Linear(width, 8)
        self.four = nn.Linear(width, width)

    def forward(self, x):
        query = self.one(x).unflatten(-1, (self.heads, 8)).transpose(1, 2)
        key, value = (layer(x)[:, None].expand(-1, self.heads, -1, -1) for layer in (self.two, self.three))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.four(mixed.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, kind, width):
        super().__init__()
        self.embed, self.norm, self.final = nn.Embedding(VOCABULARY, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.head = kind(width), nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.final(x + self.mix(self.norm(x))))


class InTheOwnForward(nn.Module):
    """Attention with a fused projection in the model's own forward."""

    def __init__(self, width):
        super().__init__()
        self.embed, self.norm, self.final = nn.Embedding(VOCABULARY, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.second, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 23)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.final(x + self.second(attend(*self.first(self.norm(x)).chunk(3, -1)))))


IDS = torch.randint(0, VOCABULARY, (2, 8), generator=torch.Generator().manual_seed(0))
FUSED = {
    "named": lambda width: Net(Named, width),
    "bare": lambda width: Net(Bare, width),
    "interleaved": lambda width: Net(Interleaved, width),
    "own forward": InTheOwnForward,
}


@pytest.mark.parametrize("name", FUSED)
def test_the_planned_function_is_that_of_scaled_scores(name, monkeypatch):
    """Queries, keys and values in one projection: the plan's weights give what scores times one half give."""
    torch.manual_seed(0)
    base, model = FUSED[name](16), FUSED[name](64)
    made = prescribe(model, "mup", base=base, batch=IDS)
    assert made.scales == []
    explicit = copy.deepcopy(model)
    prescribe(model, "mup", base=base, batch=IDS, attention="keep").apply_(explicit)
    made.apply_(model)
    plain = F.scaled_dot_product_attention

    def halved(query, key, value, **options):
        return plain(query, key, value, scale=0.5 * query.shape[-1] ** -0.5, **options)

    found = model.double()(IDS)
    monkeypatch.setattr(F, "scaled_dot_product_attention", halved)
    torch.testing.assert_close(found, explicit.double()(IDS), rtol=1e-5, atol=1e-6)


def test_constant_key_and_value_heads_are_no_readouts():
    base, model = Net(ConstantKeys, 16), Net(ConstantKeys, 64)
    made = prescribe(model, "mup", base=base, batch=IDS)
    assert {made[f"mix.{name}.weight"].role for name in ("two", "three")} == {"query_key", "value"}
    for name in ("two", "three"):
        assert made[f"mix.{name}.weight"].init.value == pytest.approx(1.0)  # its own draw shrinks like the root already
        assert made[f"mix.{name}.weight"].lr == pytest.approx(1 / 4)


def test_falcon_without_multi_query_and_llama_with_constant_key_heads():
    hf = pytest.importorskip("transformers")
    words = {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "bos_token_id": 0, "eos_token_id": 0}

    def falcon(width):
        config = hf.FalconConfig(hidden_size=width, num_attention_heads=2, multi_query=False, **words)
        return hf.FalconForCausalLM(config).eval()

    def llama(width):
        config = hf.LlamaConfig(
            hidden_size=width, intermediate_size=2 * width, num_attention_heads=width // 8, num_key_value_heads=2,
            head_dim=8, **words,
        )  # fmt: skip
        return hf.LlamaForCausalLM(config).eval()

    rows = {row.name: row for row in prescribe(falcon(64), "mup", base=falcon(16), batch=IDS)}
    fused = next(row for name, row in rows.items() if "query_key_value.weight" in name)
    dense = next(row for name, row in rows.items() if "self_attention.dense.weight" in name)
    assert fused.lr * dense.lr == pytest.approx(1 / 16)  # a quarter each; the roots of the attention's factor cancel
    assert fused.lr == pytest.approx(0.25 * math.sqrt(0.5))
    rows = {row.name: row for row in prescribe(llama(64), "mup", base=llama(16), batch=IDS)}
    for name in ("k_proj", "v_proj"):
        row = rows[f"model.layers.0.self_attn.{name}.weight"]
        assert (row.lr, row.init.value) == (pytest.approx(1 / 4), pytest.approx(1 / 2))  # std 0.02 at any width


@pytest.mark.parametrize("name", ["named", "bare"])
def test_the_coordinate_check_passes_without_names(name):
    report = coord_check(FUSED[name], [16, 32, 64], batch=IDS, steps=2, seeds=2)
    assert report.passed, report


@pytest.mark.parametrize("recipe", ["unit", "xavier"])
def test_a_composed_plan_passes_with_a_fixed_number_of_heads(recipe):
    """Attention's scale and the readout's draw, which composition lacked."""

    def plan(model, base):
        return sp.plan(model, recipe, width="mup", base=base, batch=IDS)

    report = coord_check(FUSED["named"], [16, 32, 64], batch=IDS, plan=plan, steps=2, seeds=3)
    assert report.passed, report
