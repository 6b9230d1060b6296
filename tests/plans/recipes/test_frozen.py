"""Weights that are not trained stay as they are, and low-rank adapters beside them are no residual branches."""

import copy

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import UnsupportedError
from sigprop.models import build
from sigprop.structure import read_structure

IDS = torch.randint(0, 64, (1, 12), generator=torch.Generator().manual_seed(0))


class Adapted(nn.Module):
    """`W x + B A x` with `W` frozen and `B` at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x)) * 2.0


def model():
    torch.manual_seed(0)
    return build("transformer", depth=2, width=32, heads=2, vocabulary=64, context=12)


def adapted(*places):
    made = model().requires_grad_(False)
    for name, module in list(made.named_modules()):
        owner, _, key = name.rpartition(".")
        if isinstance(module, nn.Linear) and key in places:
            setattr(made.get_submodule(owner), key, Adapted(module))
    return made


def test_frozen_matrices_have_the_roles_of_trained_ones():
    trained, frozen = read_structure(model(), IDS), read_structure(model().requires_grad_(False), IDS)
    assert [item.role for item in frozen] == [item.role for item in trained]
    assert [item.exit for item in frozen.junctions] == [item.exit for item in trained.junctions]
    assert all(item.frozen for item in frozen)
    assert not any(item.frozen for item in trained)


@pytest.mark.parametrize("place", ["output", "query", "down", "up"])
def test_an_adapter_adds_no_junction(place):
    plain = read_structure(model(), IDS)
    found = read_structure(adapted(place), IDS)
    assert len(found.junctions) == len(plain.junctions)
    assert not any(junction.projected for junction in found.junctions)


def test_a_recipe_that_would_draw_frozen_weights_is_refused():
    made = adapted("query", "value")
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(UnsupportedError, match=r"frozen.*\"own\"") as refusal:
        sp.plan(made, "unit", width="mup", batch=IDS)
    assert "output.weight" in str(refusal.value)
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())


def test_adapters_take_the_rates_of_the_width_rule_and_nothing_is_drawn():
    made = adapted("query", "value")
    before = copy.deepcopy(made.state_dict())
    plan = sp.plan(made, "own", width="mup", batch=IDS)
    plan.apply_(made)
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())
    groups = plan.param_groups(made, lr=1.0)
    names = [name for group in groups for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, item in made.named_parameters() if item.requires_grad)
    rates = {name: group["lr"] for group in groups for name in group["param_names"]}
    down = next(rate for name, rate in rates.items() if name.endswith("query.down.weight"))
    assert down == pytest.approx(128 / 32)


def test_a_frozen_table_is_kept_and_the_rest_is_drawn_for_it():
    made = model()
    table = made.token_embedding.requires_grad_(False)
    values = table.weight.detach().clone()
    plan = sp.plan(made, "unit", width="mup", batch=IDS)
    plan.apply_(made)
    assert torch.equal(table.weight, values)
    assert plan[next(name for name, item in made.named_parameters() if item is table.weight)].why.endswith("frozen")


def test_peft():
    peft = pytest.importorskip("peft")
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    made = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, intermediate_size=64, vocab_size=64))
    wrapped = peft.get_peft_model(made, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    with pytest.raises(UnsupportedError, match="frozen"):
        sp.plan(wrapped, "unit", width="mup", batch=IDS)
    plan = sp.plan(wrapped, "own", width="mup", batch=IDS)
    groups = plan.param_groups(wrapped, lr=1.0)
    assert sum(len(group["params"]) for group in groups) == 2 * 3 * 2
