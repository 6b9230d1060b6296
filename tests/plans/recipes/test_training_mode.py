"""A plan is a function of its arguments: in training mode too, whatever the global random state is."""

import pytest
import torch

import sigprop as sp
from sigprop.models import build


def gpt2():
    hf = pytest.importorskip("transformers")
    config = hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0,
                           attn_implementation="eager")  # fmt: skip
    return hf.GPT2LMHeadModel(config).train()


def written():
    return build("transformer", vocabulary=50, context=12, width=32, depth=2, heads=2, dropout=0.1).train()


@pytest.mark.parametrize("make", [gpt2, written])
@pytest.mark.parametrize("recipe", ["unit", "deepscale"])
def test_global_seeds_change_nothing_and_are_not_moved(make, recipe):
    ids = torch.arange(12)[None]
    torch.manual_seed(0)
    model, plans = make(), []
    for seed in (0, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        plans.append(sp.plan(model, recipe, batch=ids))
        assert torch.equal(before, torch.get_rng_state())
    assert plans[0].diff(plans[1]) == []
